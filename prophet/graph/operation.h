// An operation while it is replayed, in one cache line, and what is left to be told of all of them.
#pragma once

#include <cstdint>
#include <span>

#include "prophet/graph/graph.h"
#include "prophet/item.h"

namespace prophet::graph {

struct alignas(64) Operation {
  enum Flag : uint32_t { kGated = 1, kAcknowledges = 2, kMarks = 4, kMemory = 8 };
  TimeNs ready = 0;  // as far as is known
  TimeNs start = 0;
  TimeNs end = 0;
  TimeNs duration = 0;
  TimeNs latency = 0;
  uint32_t first_successor = 0;
  uint32_t successors = 0;
  uint32_t missing = 0;  // dependencies that it has not heard of
  int32_t device = -1;
  int32_t held_by = -1;
  uint32_t flags = 0;
};
static_assert(sizeof(Operation) == 64);

// What follows from the operations' own times: all of the result but sent_ns, link_busy_ns and
// peak_bytes.
Result ResultOf(const Graph& graph, std::span<const Operation> operations);

}  // namespace prophet::graph
