#include "graphs.h"

#include <algorithm>

#include "prophet/registry.h"

namespace prophet::graph {

int32_t OwnedGraph::Link(int64_t bps) {
  link_bps_.push_back(bps);
  return static_cast<int32_t>(link_bps_.size()) - 1;
}

int32_t OwnedGraph::Serial(int64_t units, bool by_priority) {
  devices_.push_back({.by_priority = by_priority, .units = units});
  return static_cast<int32_t>(devices_.size()) - 1;
}

int32_t OwnedGraph::Connection(const std::vector<int32_t>& route, bool cost_on_first_link,
                               bool by_priority) {
  routes_.push_back(route);
  devices_.push_back({.kind = Device::Kind::kConnection,
                      .by_priority = by_priority,
                      .cost_on_first_link = cost_on_first_link,
                      .route = routes_.back()});
  return static_cast<int32_t>(devices_.size()) - 1;
}

int32_t OwnedGraph::Weighted(const std::vector<int32_t>& route,
                             const std::vector<int32_t>& weights) {
  const int32_t number = Connection(route);
  routes_.push_back(weights);
  devices_.back().weights = routes_.back();
  return number;
}

void OwnedGraph::Overlap(int32_t device, int32_t group, int32_t slowdown) {
  devices_[static_cast<size_t>(device)].overlap_group = group;
  devices_[static_cast<size_t>(device)].overlap_slowdown = slowdown;
}

int32_t OwnedGraph::Add(const Step& step) {
  const auto number = static_cast<int32_t>(steps_.size());
  steps_.push_back(step);
  for (const int32_t before : step.after) Depend(before, number);
  return number;
}

void OwnedGraph::Guard(int32_t operation, int32_t gate, const Item& item, int32_t acked_by) {
  gated_operation_.push_back(operation);
  gated_gate_.push_back(gate);
  gated_key_.push_back(item.key);
  gated_server_.push_back(item.server);
  gated_priority_.push_back(item.priority);
  gated_acked_by_.push_back(acked_by);
}

void OwnedGraph::Mark(int32_t operation, int32_t gate) {
  mark_operation_.push_back(operation);
  mark_gate_.push_back(gate);
}

Graph OwnedGraph::graph() {
  const auto column = [&](auto& to, auto field) {
    to.clear();
    for (const Step& step : steps_) to.push_back(step.*field);
  };
  column(duration_, &Step::duration);
  column(device_, &Step::device);
  column(size_, &Step::bytes);
  column(latency_, &Step::latency);
  column(release_, &Step::release);
  column(priority_, &Step::priority);
  column(pool_, &Step::pool);
  column(allocated_, &Step::allocated);
  column(freed_, &Step::freed);
  std::stable_sort(edges_.begin(), edges_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  first_.assign(steps_.size() + 1, 0);
  successor_.clear();
  for (const auto& [before, after] : edges_) {
    ++first_[static_cast<size_t>(before) + 1];
    successor_.push_back(after);
  }
  for (size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
  int32_t pools = 0;
  for (const int32_t pool : pool_) pools = std::max(pools, pool + 1);
  return {.duration_ns = duration_,
          .device = device_,
          .size_bytes = size_,
          .latency_ns = latency_,
          .release_ns = release_,
          .priority = priority_,
          .first_successor = first_,
          .successor = successor_,
          .memory_pool = pool_,
          .allocated_bytes = allocated_,
          .freed_bytes = freed_,
          .pools = pools,
          .devices = devices_,
          .link_bps = link_bps_,
          .gated_operation = gated_operation_,
          .gated_gate = gated_gate_,
          .gated_key = gated_key_,
          .gated_server = gated_server_,
          .gated_priority = gated_priority_,
          .gated_acked_by = gated_acked_by_,
          .mark_operation = mark_operation_,
          .mark_gate = mark_gate_,
          .gates = gates_};
}

Result Replay(OwnedGraph& graph, const std::string& policy, const Settings& settings) {
  return Replay(graph.graph(), [&](size_t /*gate*/) { return MakePolicy(policy, settings); });
}

}  // namespace prophet::graph
