// The order in which all workers send an iteration's partitions, planned.
//
// A worker that sends the most urgent it has decides anew with every message. Where gradients come
// about as fast as the link takes them, what it decides hangs on fractions of a millisecond: of
// each tensor some partitions go and the others are left for later, and no two workers leave the
// same. But only what all have sent can be summed. With many small tensors a sixth of all bytes
// stands half summed at the servers, the links to the workers idle meanwhile, and the answers take
// their time when the last pushes have come. (DenseNet-201, three workers, links as slow as the
// compute: 11% over the bound; with this order 5%.)
//
// So strict priority is simulated beforehand on a link of a given bandwidth, with the ready times
// of a plan, both the same in all workers, and what it does there is the order. A worker sends the
// first of it that is ready. If one falls behind or runs ahead, that shifts, it does not swap.
//
//   rank 1. what becomes ready in the last kLastShare of the time, or is not in the plan: by
//           priority. A link slower than planned must not keep it waiting for its turn.
//   rank 2. what is sent before that, in that order.
//   rank 3. what is left then: by priority. So is what comes late but is less urgent than anything
//           left, or than what a link kSlowest as fast as planned would still have to send.
//
// So where things become ready as planned, nothing waits for what is less urgent and came later.
//
// Partitions are known from the iteration before. A plan that the job has left behind would make
// urgent gradients wait for turns that come late: with a link slower than kSlowest of the planned
// one, or a backward shorter than kShortest of the planned one, all go by priority until there is
// another. A link that is faster does no harm: the worker runs ahead and fills in what is left.
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
