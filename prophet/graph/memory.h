// What operations take of memory pools, and the most that was in use at any time: what ends at a
// time frees before what starts takes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "prophet/graph/graph.h"

namespace prophet::graph {

class Memory {
 public:
  explicit Memory(const Graph& graph) : graph_(graph), pools_(static_cast<size_t>(graph.pools)) {}

  bool IsUsedBy(size_t operation) const {
    return !graph_.memory_pool.empty() && graph_.memory_pool[operation] >= 0;
  }
  // Of an operation that uses memory.
  void OnStart(size_t operation) { Use(operation, graph_.allocated_bytes[operation]); }
  void OnEnd(size_t operation) { Use(operation, -graph_.freed_bytes[operation]); }

  // To be called before time goes on.
  void Settle() {
    for (const size_t number : touched_) {
      Pool& pool = pools_[number];
      pool.touched = false;
      pool.peak = std::max(pool.peak, pool.used);
    }
    touched_.clear();
  }

  std::vector<int64_t> peak_bytes() const {
    std::vector<int64_t> peaks;
    for (const Pool& pool : pools_) peaks.push_back(pool.peak);
    return peaks;
  }

 private:
  struct Pool {
    int64_t used = 0;
    int64_t peak = 0;
    bool touched = false;
  };

  void Use(size_t operation, int64_t bytes) {
    const auto number = static_cast<size_t>(graph_.memory_pool[operation]);
    pools_[number].used += bytes;
    if (!std::exchange(pools_[number].touched, true)) touched_.push_back(number);
  }

  const Graph& graph_;
  std::vector<Pool> pools_;
  std::vector<size_t> touched_;  // since the last Settle
};

}  // namespace prophet::graph
