// What a replay's end waited for, and what an operation needs: ways back through a graph.
#include <algorithm>
#include <vector>

#include "prophet/graph/graph.h"

namespace prophet::graph {
namespace {

// The operations on which each depends: `of(i)` as the graph has successors.
class Predecessors {
 public:
  explicit Predecessors(const Graph& graph)
      : first_(graph.duration_ns.size() + 1), operation_(graph.successor.size()) {
    for (const int32_t next : graph.successor) ++first_[static_cast<size_t>(next) + 1];
    for (size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
    std::vector<size_t> place(first_.begin(), first_.end() - 1);
    for (size_t i = 0; i + 1 < first_.size(); ++i) {
      for (int64_t edge = graph.first_successor[i]; edge < graph.first_successor[i + 1]; ++edge) {
        const auto next = static_cast<size_t>(graph.successor[static_cast<size_t>(edge)]);
        operation_[place[next]++] = static_cast<int32_t>(i);
      }
    }
  }
  std::span<const int32_t> of(size_t operation) const {
    return std::span(operation_)
        .subspan(first_[operation], first_[operation + 1] - first_[operation]);
  }

 private:
  std::vector<size_t> first_;
  std::vector<int32_t> operation_;
};

}  // namespace

std::vector<int32_t> CriticalPath(std::span<const int64_t> first_successor,
                                  std::span<const int32_t> successor,
                                  std::span<const int64_t> latency_ns,
                                  std::span<const TimeNs> ready_ns, std::span<const TimeNs> end_ns,
                                  std::span<const int32_t> held_by) {
  const size_t count = end_ns.size();
  if (count == 0) return {};
  std::vector<int32_t> waited_for(held_by.begin(), held_by.end());
  for (size_t i = 0; i < count; ++i) {
    const TimeNs heard = end_ns[i] + (latency_ns.empty() ? 0 : latency_ns[i]);
    for (int64_t edge = first_successor[i]; edge < first_successor[i + 1]; ++edge) {
      const auto next = static_cast<size_t>(successor[static_cast<size_t>(edge)]);
      if (waited_for[next] < 0 && heard == ready_ns[next]) {
        waited_for[next] = static_cast<int32_t>(i);
      }
    }
  }
  std::vector<int32_t> path;
  auto at = static_cast<int32_t>(std::max_element(end_ns.begin(), end_ns.end()) - end_ns.begin());
  for (; at >= 0; at = waited_for[static_cast<size_t>(at)]) path.push_back(at);
  std::reverse(path.begin(), path.end());
  return path;
}

std::vector<int32_t> Closure(const Graph& graph, std::span<const int32_t> wanted) {
  Validate(graph);
  const size_t count = graph.duration_ns.size();
  const Predecessors predecessors(graph);
  constexpr size_t kNone = ~size_t{0};
  std::vector<size_t> row_of(graph.gated_operation.empty() ? 0 : count, kNone);
  for (size_t row = 0; row < graph.gated_operation.size(); ++row) {
    row_of[static_cast<size_t>(graph.gated_operation[row])] = row;
  }
  std::vector<bool> needed(count);
  std::vector<bool> gate_needed(static_cast<size_t>(graph.gates));
  std::vector<size_t> open;
  const auto need = [&](int32_t operation) {
    const auto at = static_cast<size_t>(operation);
    if (needed[at]) return;
    needed[at] = true;
    open.push_back(at);
  };
  const auto need_gate = [&](int32_t gate) {
    if (gate_needed[static_cast<size_t>(gate)]) return;
    gate_needed[static_cast<size_t>(gate)] = true;
    for (size_t row = 0; row < graph.mark_operation.size(); ++row) {
      if (graph.mark_gate[row] == gate) need(graph.mark_operation[row]);
    }
  };
  for (const int32_t operation : wanted) {
    if (operation < 0 || static_cast<size_t>(operation) >= count) {
      throw Refused("there is no operation " + std::to_string(operation));
    }
    need(operation);
  }
  while (!open.empty()) {
    const size_t at = open.back();
    open.pop_back();
    for (const int32_t before : predecessors.of(at)) need(before);
    if (row_of.empty() || row_of[at] == kNone) continue;
    need(graph.gated_acked_by[row_of[at]]);
    need_gate(graph.gated_gate[row_of[at]]);
  }
  std::vector<int32_t> closure;
  for (size_t i = 0; i < count; ++i) {
    if (needed[i]) closure.push_back(static_cast<int32_t>(i));
  }
  return closure;
}

}  // namespace prophet::graph
