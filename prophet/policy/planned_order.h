// The order in which all workers send the partitions of an iteration.
//
// Without a plan, a worker chooses the most urgent partition anew for each message. Where gradients
// become ready about as fast as the link takes them, the choice depends on fractions of a
// millisecond, so each worker leaves other partitions for later. The server can only sum what all
// workers have sent. docs/policies.md has the measurements.
//
// So each worker simulates strict priority on a link of a given bandwidth, with the ready times of
// a plan. Both are the same in all workers, and so is the order that comes out. A worker sends the
// first partition of that order that is ready. A worker that is early or late keeps the order.
//
//   rank 1: by priority, what becomes ready in the last kLastShare of the time, or is not in the
//           plan. On a link slower than planned it must not wait for its turn.
//   rank 2: in the planned order, what is sent before that.
//   rank 3: by priority, what is left then. This includes what is late, unless it is more urgent
//           than all that is left, and than all that a link kSlowest as fast as planned would still
//           have to send.
//
// If everything becomes ready as planned, nothing waits for what is less urgent and came later.
//
// Partitions are those of the iteration before. If the job has changed since the plan was made,
// urgent gradients would wait for turns that come late. So if in an iteration this worker's link
// was slower than kSlowest of the planned one, or its backward pass shorter than kShortest of the
// planned one, all of its next iteration goes by priority. Other workers may keep the order. A
// faster link does no harm: the worker runs ahead.
//
// Thread safety: none, like the policy that owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>

#include "prophet/item.h"
#include "prophet/policy.h"

namespace prophet {

class PlannedOrder {
 public:
  static constexpr double kLastShare = 0.05;
  static constexpr double kSlowest = 0.75;
  static constexpr double kShortest = 0.8;

  // Of a plan; with no times or no bandwidth (payload; 0), all go by priority.
  void SetReadyTimes(std::span<const ReadyTime> times);
  void SetBandwidth(double bytes_per_ns);

  void OnReady(const Item& item, TimeNs now);
  // `link_bytes_per_ns`: of this worker's link, as far as it is known.
  void OnIteration(std::optional<double> link_bytes_per_ns);

  // Smaller goes first.
  int64_t RankOf(const Item& item) const;

 private:
  void Plan();

  std::unordered_map<uint64_t, TimeNs> ready_ns_;  // by tensor
  double bytes_per_ns_ = 0;
  struct Known {
    Item item;
    uint64_t iteration;  // in which it came last
  };
  std::unordered_map<uint64_t, Known> known_;  // by key
  size_t came_ = 0;                            // of them, in this iteration
  bool changed_ = false;                       // any of the above, since the last Plan()

  uint64_t iteration_ = 1;
  TimeNs first_ready_ns_ = 0, last_ready_ns_ = 0;  // of this iteration
  TimeNs planned_ns_ = 0;                          // from first to last, as planned
  bool fits_ = true;
  std::unordered_map<uint64_t, int64_t> ranks_;  // by key, where it is not the priority's
};

}  // namespace prophet
