// Links in one direction: messages from senders to receivers. The job has two: pushes from workers
// to servers, and answers from servers to workers; a link's two directions never disturb each
// other.
//
// A flow is one sender's socket towards one receiver: a queue, whose first message is under way. A
// message passes through two phases: its cost, which only the sender's link bears (as so many bytes
// as pass in that time when the link is not shared), then its bytes, on both links at once, shared
// as prophet/fluid/links.h has it.
//
// Invariants. A flow with anything queued has a message under way. Messages of one flow end in the
// order of their queue: by `urgency`, smaller first, then in the order of Send; what is under way
// stays so. No allocation once queues have grown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "prophet/engine/job.h"
#include "prophet/fluid/links.h"
#include "prophet/item.h"

namespace prophet::engine {

using fluid::kMaxBandwidthBps;
using fluid::kMinBandwidthBps;
using fluid::kNever;
using fluid::kWorkPerByte;
inline constexpr int64_t kMaxHosts = 1024;  // workers, or servers
inline constexpr int64_t kMaxMessageBytes = (int64_t{1} << 31) - 1;
inline constexpr TimeNs kMaxMessageCostNs = 5'000'000;

class Fabric {
 public:
  struct Message {
    uint32_t sender = 0;
    uint32_t receiver = 0;
    uint64_t tag = 0;  // the caller's
    int64_t bytes = 0;
    TimeNs cost_ns = 0;
    uint32_t urgency = 0;
  };

  // Rates of the links: 0 for not limited. `sender_counts`, `receiver_counts`: how many senders,
  // receivers, each one stands for (fold.h); empty: one.
  Fabric(std::span<const int64_t> sender_bps, std::span<const int64_t> receiver_bps,
         std::span<const int64_t> sender_counts = {},
         std::span<const int64_t> receiver_counts = {});

  void Send(const Message& message, TimeNs now);

  // When the next phase ends; kNever if nothing is under way.
  TimeNs next_ns() const { return at_once_.empty() ? links_.next_ns() : at_once_ns_; }
  // Ends that phase: `now` is next_ns(). Of several, the one of the smallest sender, then receiver.
  // The message, if that was its last one; else nullptr. Valid until the next call of anything.
  const Message* Advance(TimeNs now);

  LinkUse sender_use(size_t sender) const { return UseOf(sender); }
  LinkUse receiver_use(size_t receiver) const { return UseOf(senders_ + receiver); }
  // What the flow gets now; 0 if nothing is under way or nothing limits it.
  int64_t rate_bps(size_t sender, size_t receiver) const {
    return links_.rate_bps(sender * receivers_ + receiver);
  }

 private:
  struct Queued {
    uint64_t order;  // urgency, then sequence
    Message message;
    // For a heap whose top is the smallest.
    bool operator<(const Queued& other) const { return order > other.order; }
  };
  struct Flow {
    bool in_flight = false;
    bool in_cost = false;
    uint32_t sequence = 0;
    Message message{};          // under way
    std::vector<Queued> queue;  // a heap
  };

  LinkUse UseOf(size_t link) const {
    LinkUse use = uses_[link];
    use.busy_ns = links_.busy_ns(link);
    return use;
  }

  // `finished_` has passed, so many times.
  void Count(LinkUse& use, int64_t messages) const;
  size_t TakeNext(TimeNs now);
  void StartNext(size_t flow, TimeNs now);
  void StartBytes(size_t flow, TimeNs now);

  size_t senders_;
  size_t receivers_;
  fluid::Links links_;         // senders, then receivers; a connection per flow
  std::vector<LinkUse> uses_;  // of the links, but for `busy_ns`
  // How many senders and receivers each one stands for.
  std::vector<int64_t> sender_counts_, receiver_counts_;
  std::vector<Flow> flows_;  // by sender, then receiver
  // Flows whose bytes take no time, a heap whose top is the smallest, and when.
  std::vector<size_t> at_once_;
  TimeNs at_once_ns_ = 0;
  Message finished_{};
};

}  // namespace prophet::engine
