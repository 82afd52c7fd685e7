// The times of the halves of all-reduces on one link, which carries the most urgent ready half.
//
// A half is a reduce-scatter, or the all-gather that may follow once the reduce-scatter of its
// bucket has ended. The ready half with the smallest place has the link; it gives it up as soon as
// one with a smaller place is ready, and goes on later. In the fluid limit and exact in integers:
// python/byteprophet/strict_priority.py is the same rule, and python/byteprophet/allreduce/model.py
// says what it stands for. Searches for buckets need it thousands of times. O(n log n).
// A pure function, safe from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "prophet/item.h"

namespace prophet {

struct Halves {
  // One entry per bucket, all of one length n.
  std::span<const TimeNs> ready_ns{};   // of the reduce-scatter
  std::span<const TimeNs> reduce_ns{};  // how long each half needs the link
  std::span<const TimeNs> gather_ns{};
  std::span<const int64_t> reduce_place{};  // all places together are 0 to 2 n - 1
  std::span<const int64_t> gather_place{};
  std::span<const int64_t> after_step{};  // 1: the all-gather begins at step_ns at the earliest
  TimeNs step_ns = 0;
};

struct HalfTimes {
  std::vector<TimeNs> reduce_start, reduce_end, gather_start, gather_end;
};

// Throws std::invalid_argument, in one line, for lengths that differ, places that are not all of 0
// to 2 n - 1, and anything negative or beyond 2^60 in sum.
HalfTimes TimesOfHalves(const Halves& halves);

}  // namespace prophet
