// When will something more urgent become ready? Learned from earlier iterations.
//
// Per tensor (TensorOf(key)) it keeps the offset of its first ready partition from the iteration's
// first ready item, as an average and a mean absolute deviation: plain averages at first,
// exponentially weighted (1/4) after four iterations, so that they follow drift. The first
// iteration counts only until there is a second: a job declares, allocates and compiles in it.
//
// An iteration starts with the first item after a boundary. A boundary is OnIteration(), or a key
// that is ready for the second time. A tensor absent from several iterations in a row is forgotten.
// Thread safety: none, like the policy that owns it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "prophet/policy.h"
#include "prophet/segment_tree.h"

namespace prophet {

class ReadyForecast {
 public:
  // A tensor absent from more iterations in a row than this is no longer expected.
  static constexpr int kForgetAfter = 3;

  // Replaces what is known of the tensors named; later iterations refine it. Throws
  // std::invalid_argument as Policy::SetReadyTimes does, and then changes nothing.
  void Set(std::span<const ReadyTime> times);

  void OnReady(uint64_t key, int32_t priority, TimeNs now);
  void OnIteration();

  // Of the tensors that have come in this iteration, as Set() takes them. Ready times are no later
  // than in this iteration: the first iterations may take far longer, and averages remember that.
  std::vector<ReadyTime> Times() const;

  // The earliest time at which a tensor of higher priority that is still to come in this iteration
  // may be ready: its average less its deviation. In the past if it is late. nullopt if none is
  // expected, or if the iteration has not started.
  std::optional<TimeNs> NextAbove(int32_t priority) const;

 private:
  static constexpr size_t kNoPosition = std::numeric_limits<size_t>::max();
  static constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();

  struct Tensor {
    int32_t priority = 0;
    TimeNs ready_ns = 0;
    TimeNs spread_ns = 0;
    TimeNs last_ns = 0;                            // in last_iteration
    int observations = 0;                          // stops counting at the weight's limit
    uint64_t last_iteration = 0;                   // in which it was ready; 0 for none
    int absences = 0;                              // iterations in a row
    size_t position = kNoPosition;                 // in `expected_`
    std::vector<uint64_t> partition_iterations{};  // the last of each, by its number
  };
  struct Earliest {
    using Value = TimeNs;
    static constexpr Value Identity() { return kNever; }
    static Value Combine(Value left, Value right) { return std::min(left, right); }
  };

  static void Learn(Tensor& tensor, TimeNs offset_ns);
  // Expects all tensors again that have not come in this iteration.
  void Rebuild();

  uint64_t iteration_ = 1;
  std::optional<TimeNs> started_;  // when this iteration's first item was ready
  std::unordered_map<uint64_t, Tensor> tensors_;
  bool order_changed_ = false;    // a tensor was added, or its priority changed
  std::vector<Tensor*> order_{};  // by position
  // By position, as of the last Rebuild: descending priorities, and offsets of what is to come.
  std::vector<int32_t> priorities_;
  SegmentTree<Earliest> expected_;
};

}  // namespace prophet
