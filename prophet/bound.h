// The shortest time one iteration can take, whatever the schedule.
//
// Time runs from the start of backward; tensors are in forward order. With B the payload rate per
// direction of a worker's link, and F_k the forward time from tensor k on, the largest of
//   1. r + (bytes of tensors 0..k released at r or later) / B + F_k, over all k and releases r of
//      tensors 0..k. Of one link, in the fluid limit, this is the optimum: the most urgent ready
//      tensor first, preemptively (1 | r_i, pmtn | max(C_i + q_i));
//   2. backward + F_0;
//   3. all bytes / B (either direction);
//   4. workers * all bytes / (servers * server bandwidth), if that is given.
// Exact in integers, rounded down once, O(n log n). Pure functions, safe from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "prophet/item.h"

namespace prophet {

struct BoundInput {
  // One entry per tensor, in forward order; all of one length.
  std::span<const int64_t> size_bytes{};
  std::span<const TimeNs> ready_ns{};    // from the start of backward
  std::span<const TimeNs> forward_ns{};  // the forward time that needs the tensor
  TimeNs backward_ns = 0;
  std::optional<int64_t> bandwidth_bps{};  // none: not a constraint
  int64_t workers = 1;
  int64_t servers = 1;
  std::optional<int64_t> server_bandwidth_bps{};  // per direction of each server's link
};

// Throws std::invalid_argument, in one line, for lengths that differ, anything negative, a rate
// that is not positive, counts outside 1 to 2^20, and sums or results that do not fit in 62 bits.
TimeNs IterationBoundNs(const BoundInput& input);

}  // namespace prophet
