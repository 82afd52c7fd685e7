// The interface between a scheduling policy and whatever drives it: BytePS' queue in the plug-in, a
// simulated link elsewhere. The same object serves both.
//
// Thread safety: none. The driver holds one lock around every call, and no call blocks.
//
// Invariants every policy keeps:
//   1. Each item given to OnReady is returned by Next exactly once; it is in flight from then on,
//      until OnAcked.
//   2. Liveness: if anything is pending for a server that has nothing in flight, Next returns
//      kSend, or kWaitUntil with a finite, near time and then kSend. So a driver that asks again
//      after every OnReady, OnAcked and ask_again_ns never hangs.
//   3. No policy waits for one particular key: it may not come in this iteration.
//   4. The same calls with the same times give the same answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "prophet/item.h"
#include "prophet/settings.h"

namespace prophet {

struct Decision {
  enum class Kind {
    kSend,       // send `item` now, then ask again
    kWaitUntil,  // nothing to do before `ask_again_ns`, or before the next OnReady or OnAcked
    kIdle,       // nothing to do before the next OnReady or OnAcked
  };
  Kind kind = Kind::kIdle;
  Item item{};              // kSend only
  TimeNs ask_again_ns = 0;  // kWaitUntil only
};

// When a tensor becomes ready, counted from the first ready tensor of its iteration.
struct ReadyTime {
  uint64_t tensor = 0;
  int32_t priority = 0;  // the one its items carry; negative
  TimeNs ready_ns = 0;
  TimeNs spread_ns = 0;  // mean absolute deviation over iterations; 0 if not known
  bool operator==(const ReadyTime&) const = default;
};

// What all workers need of one of them, so that they send in one order.
struct Learned {
  int64_t bandwidth_bps = 0;  // payload of this worker's link
  bool has_plan = false;      // it has been given an order, and needs none
  std::vector<ReadyTime> times;
  bool operator==(const Learned&) const = default;
};

class Policy {
 public:
  Policy() = default;
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;
  virtual ~Policy() = default;

  virtual void OnReady(const Item& item, TimeNs now) = 0;
  // Only item.key is read. A key that is not in flight is ignored.
  virtual void OnAcked(const Item& item, TimeNs now) = 0;
  // Called after the last item of an iteration became ready and before the first of the next does.
  // Optional: a policy that cares also notices by itself when a key returns.
  virtual void OnIteration(TimeNs now) = 0;
  virtual Decision Next(TimeNs now) = 0;
  // Items not yet returned by Next.
  virtual size_t pending() const = 0;
  virtual std::string_view name() const = 0;

  // A profile known beforehand. Policies that predict nothing ignore it.
  // Throws std::invalid_argument for a negative time or spread, or a priority that is not negative.
  virtual void SetReadyTimes(std::span<const ReadyTime> /*times*/) {}

  // The partition size in bytes that would suit this worker's link; nullopt: no wish. Who drives
  // the policy has all workers agree on one, and says so with Reconfigure().
  virtual std::optional<int64_t> PreferredPartitionBytes() const { return std::nullopt; }

  // What this worker has learned; nullopt: nothing yet, or it plans no order with others. Who
  // drives the policy has all workers agree on one bandwidth and on one worker's times, and says so
  // with SetOrder() before the same OnIteration(). Of times, only tensor and ready_ns are read.
  virtual std::optional<Learned> WhatItLearned() const { return std::nullopt; }
  virtual void SetOrder(int64_t /*bandwidth_bps*/, std::span<const ReadyTime> /*times*/) {}

  // Changes settings while items are pending and in flight; those not named keep their values. What
  // is in flight stays there: a smaller window only holds back what comes next.
  // Throws std::invalid_argument, as MakePolicy does, and then changes nothing.
  virtual void Reconfigure(const Settings& overrides) = 0;
  // Complete.
  virtual const Settings& settings() const = 0;
};

}  // namespace prophet
