#include "prophet/graph/operation.h"

#include <algorithm>
#include <cstddef>

namespace prophet::graph {

Result ResultOf(const Graph& graph, std::span<const Operation> operations) {
  Result result;
  for (auto* times : {&result.ready_ns, &result.start_ns, &result.end_ns}) {
    times->reserve(operations.size());
  }
  result.held_by.reserve(operations.size());
  result.device_busy_ns.resize(graph.devices.size());
  result.device_bytes.resize(graph.devices.size());
  for (size_t i = 0; i < operations.size(); ++i) {
    const Operation& operation = operations[i];
    result.ready_ns.push_back(operation.ready);
    result.start_ns.push_back(operation.start);
    result.end_ns.push_back(operation.end);
    result.held_by.push_back(operation.held_by);
    result.makespan_ns = std::max(result.makespan_ns, operation.end);
    if (operation.device < 0) continue;
    const auto device = static_cast<size_t>(operation.device);
    result.device_busy_ns[device] += operation.end - operation.start;
    if (!graph.size_bytes.empty()) result.device_bytes[device] += graph.size_bytes[i];
  }
  result.link_bytes.resize(graph.link_bps.size());
  for (size_t device = 0; device < graph.devices.size(); ++device) {
    for (const int32_t link : graph.devices[device].route) {
      result.link_bytes[static_cast<size_t>(link)] += result.device_bytes[device];
    }
  }
  return result;
}

}  // namespace prophet::graph
