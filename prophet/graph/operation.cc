#include "prophet/graph/operation.h"

#include <algorithm>
#include <cstddef>

#include "prophet/fluid/links.h"

namespace prophet::graph {
namespace {

__extension__ typedef __int128 Wide;

}  // namespace

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
    const Device& of = graph.devices[device];
    for (size_t at = 0; at < of.route.size(); ++at) {
      const Wide weight = of.weights.empty() ? fluid::kWhole : of.weights[at];
      result.link_bytes[static_cast<size_t>(of.route[at])] +=
          static_cast<int64_t>(result.device_bytes[device] * weight / fluid::kWhole);
    }
  }
  return result;
}

}  // namespace prophet::graph
