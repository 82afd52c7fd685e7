// Graphs to replay: an owner of the arrays that a Graph refers to, filled operation by operation.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "prophet/graph/graph.h"
#include "prophet/settings.h"

namespace prophet::graph {

// At this rate a byte takes a nanosecond.
inline constexpr int64_t kBytePerNs = 8'000'000'000;

struct Step {
  TimeNs duration = 0;
  int32_t device = -1;
  std::vector<int32_t> after{};
  int64_t bytes = 0;
  TimeNs latency = 0;
  TimeNs release = 0;
  int32_t priority = 0;
  int32_t pool = -1;
  int64_t allocated = 0;
  int64_t freed = 0;
};

class OwnedGraph {
 public:
  // Each returns the number of what it adds.
  int32_t Link(int64_t bps);
  int32_t Serial(int64_t units = 1, bool by_priority = false);
  int32_t Connection(const std::vector<int32_t>& route, bool cost_on_first_link = false,
                     bool by_priority = false);
  // With a weight on each link, in parts of fluid::kWhole.
  int32_t Weighted(const std::vector<int32_t>& route, const std::vector<int32_t>& weights);
  // The device slows others of its group down, and they it.
  void Overlap(int32_t device, int32_t group, int32_t slowdown);
  int32_t Gate() { return gates_++; }
  int32_t Add(const Step& step);

  void Depend(int32_t before, int32_t after) { edges_.emplace_back(before, after); }
  void Guard(int32_t operation, int32_t gate, const Item& item, int32_t acked_by);
  void Mark(int32_t operation, int32_t gate);

  // Valid until the next change.
  Graph graph();

 private:
  std::vector<Step> steps_;
  std::vector<std::pair<int32_t, int32_t>> edges_;
  std::vector<Device> devices_;
  std::deque<std::vector<int32_t>> routes_;
  std::vector<int64_t> link_bps_;
  int32_t gates_ = 0;
  std::vector<int32_t> gated_operation_, gated_gate_, gated_priority_, gated_acked_by_;
  std::vector<uint64_t> gated_key_;
  std::vector<uint32_t> gated_server_;
  std::vector<int32_t> mark_operation_, mark_gate_;

  std::vector<int64_t> duration_, size_, latency_, release_, allocated_, freed_, first_;
  std::vector<int32_t> device_, priority_, pool_, successor_;
};

// All gates under one policy.
Result Replay(OwnedGraph& graph, const std::string& policy = "fifo", const Settings& settings = {});

}  // namespace prophet::graph
