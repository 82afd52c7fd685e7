// Links in one direction: messages from senders to receivers. The job has two: pushes from workers
// to servers, and answers from servers to workers; a link's two directions never disturb each
// other.
//
// A flow is one sender's socket towards one receiver: a queue, whose first message is under way. A
// message passes through two phases: its cost, which only the sender's link bears (as so many bytes
// as pass in that time when the link is not shared), then its bytes, on both links at once. Phases
// under way share every link max-min fairly, as fluids: rates are whole bits per second, rounded
// down, and change only when a phase begins or ends. A link that is not limited constrains no
// bytes; costs at its sender then share the sender's time evenly. A phase ends at the first whole
// nanosecond at which all its work is done.
//
// Invariants. Rates on a limited link never add up to more than its rate. A flow with anything
// queued has a phase under way, and no phase stands still. Messages of one flow end in the order of
// their queue: by `urgency`, smaller first, then in the order of Send; what is under way stays so.
// Cost: where no flow has limited links at both ends, a change costs the flows of its links; else
// all flows. Finding the next end is linear in the flows. No allocation once queues have grown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "prophet/engine/job.h"
#include "prophet/item.h"

namespace prophet::engine {

inline constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();
// Work is counted in bits times nanoseconds per second: at r bits per second, r of it are done per
// ns.
inline constexpr uint64_t kWorkPerByte = 8'000'000'000;
// With these the work of a phase fits 64 bits, and no share of a link is 0.
inline constexpr int64_t kMaxMessageBytes = (int64_t{1} << 31) - 1;
inline constexpr int64_t kMinBandwidthBps = 8'000;
inline constexpr int64_t kMaxBandwidthBps = int64_t{1} << 40;
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

  // Rates of the links: 0 for not limited.
  Fabric(std::span<const int64_t> sender_bps, std::span<const int64_t> receiver_bps);

  void Send(const Message& message, TimeNs now);

  // When the next phase ends; kNever if nothing is under way.
  TimeNs next_ns() const { return next_ns_; }
  // Ends that phase: `now` is next_ns(). Of several, the one of the smallest sender, then receiver.
  // The message, if that was its last one; else nullptr. Valid until the next call of anything.
  const Message* Advance(TimeNs now);

  const LinkUse& sender_use(size_t sender) const { return senders_[sender].use; }
  const LinkUse& receiver_use(size_t receiver) const { return receivers_[receiver].use; }
  // What the flow gets now; 0 if nothing is under way or nothing limits it.
  int64_t rate_bps(size_t sender, size_t receiver) const {
    return flows_[sender * receivers_.size() + receiver].rate;
  }

 private:
  enum class Phase : uint8_t { kIdle, kCost, kBytes };

  struct Queued {
    uint64_t order;  // urgency, then sequence
    Message message;
    // For a heap whose top is the smallest.
    bool operator<(const Queued& other) const { return order > other.order; }
  };
  struct Flow {
    Phase phase = Phase::kIdle;
    uint32_t sequence = 0;
    int64_t rate = 0;
    uint64_t work = 0;  // of the phase, left at `settled`
    TimeNs settled = 0;
    Message message{};          // under way
    std::vector<Queued> queue;  // a heap
  };
  struct Link {
    int64_t rate = 0;
    int64_t users = 0;  // phases under way
    TimeNs busy_since = 0;
    LinkUse use;
    // While rates are worked out.
    int64_t left = 0;
    int64_t sharing = 0;
  };

  bool SharesSender(const Flow& flow) const {
    return flow.phase == Phase::kCost ||
           (flow.phase == Phase::kBytes && senders_[flow.message.sender].rate > 0);
  }
  bool SharesReceiver(const Flow& flow) const {
    return flow.phase == Phase::kBytes && receivers_[flow.message.receiver].rate > 0;
  }
  int64_t SenderRate(size_t sender) const {
    return senders_[sender].rate > 0 ? senders_[sender].rate : kMaxBandwidthBps;
  }
  Flow& FlowOf(size_t sender, size_t receiver) {
    return flows_[sender * receivers_.size() + receiver];
  }

  void StartNext(Flow& flow, TimeNs now);
  void StartBytes(Flow& flow, TimeNs now);
  void Occupy(Link& link, TimeNs now);
  void Release(Link& link, TimeNs now);
  // Rates of all whom a phase that began or ended at these links concerns.
  void Share(size_t sender, size_t receiver, TimeNs now);
  void ShareSender(size_t sender, TimeNs now);
  void ShareReceiver(size_t receiver, TimeNs now);
  void ShareAll(TimeNs now);
  void SetRate(Flow& flow, int64_t rate, TimeNs now);
  void FindNext();

  std::vector<Link> senders_;
  std::vector<Link> receivers_;
  std::vector<Flow> flows_;        // by sender, then receiver
  std::vector<TimeNs> ends_;       // of the flows' phases
  std::vector<int64_t> new_rate_;  // of the flows, while rates are worked out
  bool coupled_ = false;           // some flow has limited links at both ends
  TimeNs next_ns_ = kNever;
  size_t next_flow_ = 0;
  Message finished_{};
};

}  // namespace prophet::engine
