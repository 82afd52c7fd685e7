// What a graph must be before it is replayed, checked in one pass, and where it has a cycle.
#include <algorithm>
#include <string>
#include <vector>

#include "prophet/fluid/links.h"
#include "prophet/graph/graph.h"

namespace prophet::graph {
namespace {

__extension__ typedef __int128 Wide;

constexpr int64_t kMaxOperations = (int64_t{1} << 31) - 1;
constexpr int64_t kMaxNs = int64_t{1} << 60;
constexpr int64_t kMaxBytes = int64_t{1} << 50;
constexpr int64_t kMaxUnits = 1 << 20;
constexpr int32_t kMaxGroups = 1 << 24;
constexpr int32_t kMaxSlowdown = 16 * fluid::kWhole;

void Require(bool holds, const char* what) {
  if (!holds) throw Refused(what);
}

[[noreturn]] void RefuseOperation(size_t operation, const char* what) {
  throw Refused("operation " + std::to_string(operation) + " " + what,
                static_cast<int64_t>(operation));
}

template <typename T>
void RequireOnePer(size_t operations, std::span<const T> values, const char* what) {
  Require(values.empty() || values.size() == operations, what);
}

bool Below(int32_t value, size_t count) { return value >= 0 && static_cast<size_t>(value) < count; }

void ValidateShapes(const Graph& graph) {
  const size_t count = graph.duration_ns.size();
  Require(static_cast<int64_t>(count) <= kMaxOperations, "more than 2^31 - 1 operations");
  Require(graph.device.size() == count, "device must have one entry per operation");
  RequireOnePer(count, graph.size_bytes, "size_bytes must have one entry per operation or none");
  RequireOnePer(count, graph.latency_ns, "latency_ns must have one entry per operation or none");
  RequireOnePer(count, graph.release_ns, "release_ns must have one entry per operation or none");
  RequireOnePer(count, graph.priority, "priority must have one entry per operation or none");
  const size_t memory = graph.memory_pool.size();
  Require((memory == 0 || memory == count) && graph.allocated_bytes.size() == memory &&
              graph.freed_bytes.size() == memory,
          "memory_pool, allocated_bytes and freed_bytes must have one entry per operation or none");
  Require(graph.pools >= 0 && graph.gates >= 0, "negative number of pools or gates");
  Require(graph.first_successor.size() == count + 1,
          "first_successor must have one entry more than there are operations");
  const auto edges = static_cast<int64_t>(graph.successor.size());
  Require(edges < int64_t{1} << 32, "2^32 dependencies or more");
  Require(graph.first_successor.front() == 0 && graph.first_successor.back() == edges,
          "first_successor must begin with 0 and end with the number of dependencies");
  const size_t gated = graph.gated_operation.size();
  Require(graph.gated_gate.size() == gated && graph.gated_key.size() == gated &&
              graph.gated_server.size() == gated && graph.gated_priority.size() == gated &&
              graph.gated_acked_by.size() == gated,
          "the columns of gated operations differ in length");
  Require(graph.mark_gate.size() == graph.mark_operation.size(),
          "the columns of iteration marks differ in length");
}

// One that may be.
int32_t WeightOf(const Graph& graph, const Device& device, size_t at) {
  if (device.weights.empty()) return fluid::kWhole;
  const int32_t weight = device.weights[at];
  Require(weight >= 1 && weight <= fluid::kMaxWeight, "a weight must be from 2^-20 to 2^10");
  const auto link = static_cast<size_t>(device.route[at]);
  const bool bursts = !graph.link_burst_bytes.empty() && graph.link_burst_bytes[link] > 0;
  Require(!bursts || weight == fluid::kWhole, "a link with a burst must have a weight of one");
  return weight;
}

void ValidateOverlap(const Device& device) {
  Require(device.overlap_group >= -1 && device.overlap_group < kMaxGroups,
          "an overlap group must be from 0 to 2^24 - 1, or -1");
  Require(device.overlap_slowdown >= 0 && device.overlap_slowdown <= kMaxSlowdown,
          "an overlap slowdown must be from 0 to 16");
  Require(device.overlap_group == -1 || device.units == 1,
          "a device with an overlap group must have one unit");
}

void ValidateDevices(const Graph& graph) {
  for (const int64_t rate : graph.link_bps) {
    if (rate == 0 || (rate >= fluid::kMinBandwidthBps && rate <= fluid::kMaxBandwidthBps)) continue;
    throw Refused("a link's rate must be 0 (not limited) or from " +
                  std::to_string(fluid::kMinBandwidthBps) + " to 2^40 bits per second, got " +
                  std::to_string(rate));
  }
  Require(graph.link_burst_bytes.empty() || graph.link_burst_bytes.size() == graph.link_bps.size(),
          "the columns of links differ in length");
  for (const int64_t bytes : graph.link_burst_bytes) {
    Require(bytes >= 0 && bytes <= kMaxBytes, "a link's burst must be from 0 to 2^50 bytes");
  }
  std::vector<Wide> weights(graph.link_bps.size());
  for (const Device& device : graph.devices) {
    Require(device.units >= 1 && device.units <= kMaxUnits,
            "a device must have from 1 to 2^20 units");
    Require(device.weights.empty() || device.weights.size() == device.route.size(),
            "a connection must have one weight per link or none");
    for (size_t i = 0; i < device.route.size(); ++i) {
      const int32_t link = device.route[i];
      Require(Below(link, graph.link_bps.size()), "a route has a link that does not exist");
      const auto before = device.route.first(i);
      Require(std::find(before.begin(), before.end(), link) == before.end(),
              "a route has a link twice");
      weights[static_cast<size_t>(link)] += WeightOf(graph, device, i);
    }
    Require(device.kind == Device::Kind::kConnection || device.route.empty(),
            "only connections have routes");
    Require(!device.cost_on_first_link || !device.route.empty(),
            "a cost on the first link needs a link");
    Require(
        !device.cost_on_first_link || device.weights.empty() || device.weights[0] == fluid::kWhole,
        "a link that bears costs must have a weight of one");
    ValidateOverlap(device);
  }
  // So that no share is rounded down to nothing.
  for (size_t link = 0; link < weights.size(); ++link) {
    Require(
        graph.link_bps[link] == 0 || Wide{graph.link_bps[link]} * fluid::kWhole >= weights[link],
        "a link has more connections (by their weights) than bits per second");
  }
}

// At which a flow is slowest that has its links to itself.
Wide SlowestBps(const Graph& graph) {
  Wide slowest = fluid::kMaxBandwidthBps;
  for (const int64_t rate : graph.link_bps) {
    if (rate > 0) slowest = std::min(slowest, Wide{rate});
  }
  for (const Device& device : graph.devices) {
    for (size_t i = 0; i < device.weights.size(); ++i) {
      const int64_t rate = graph.link_bps[static_cast<size_t>(device.route[i])];
      if (rate == 0) continue;
      slowest = std::min(slowest, Wide{rate} * fluid::kWhole / device.weights[i]);
    }
  }
  return slowest;
}

int32_t LargestSlowdown(const Graph& graph) {
  int32_t largest = 0;
  for (const Device& device : graph.devices) largest = std::max(largest, device.overlap_slowdown);
  return largest;
}

// Also that it ends before 2^60 ns: one thing after another takes longer than any schedule.
void ValidateOperations(const Graph& graph) {
  Wide total_ns = 0;
  Wide total_bytes = 0;
  const auto time_at = [&](std::span<const int64_t> times, size_t i, const char* what) {
    if (times.empty()) return;
    if (times[i] < 0 || times[i] > kMaxNs) RefuseOperation(i, what);
    total_ns += times[i];
  };
  for (size_t i = 0; i < graph.duration_ns.size(); ++i) {
    time_at(graph.duration_ns, i, "has a duration_ns that is not from 0 to 2^60");
    time_at(graph.latency_ns, i, "has a latency_ns that is not from 0 to 2^60");
    time_at(graph.release_ns, i, "has a release_ns that is not from 0 to 2^60");
    if (graph.device[i] != -1 && !Below(graph.device[i], graph.devices.size())) {
      RefuseOperation(i, "has a device that does not exist");
    }
    if (!graph.size_bytes.empty()) {
      const int64_t bytes = graph.size_bytes[i];
      if (bytes < 0 || bytes > kMaxBytes) {
        RefuseOperation(i, "has a size_bytes that is not from 0 to 2^50");
      }
      total_bytes += bytes;
    }
    const int64_t first = graph.first_successor[i];
    const int64_t end = graph.first_successor[i + 1];
    if (first > end || end > static_cast<int64_t>(graph.successor.size())) {
      RefuseOperation(i, "has a first_successor after that of the next");
    }
    for (int64_t edge = first; edge < end; ++edge) {
      if (!Below(graph.successor[static_cast<size_t>(edge)], graph.duration_ns.size())) {
        RefuseOperation(i, "has a successor that does not exist");
      }
    }
  }
  Require(total_bytes < Wide{1} << 62, "2^62 bytes or more");
  // Rounding down may leave half of a link unused, and a phase ends at a whole nanosecond. A cost
  // that a link bears is twice as long then.
  total_ns += total_ns;
  total_ns += 2 * total_bytes * static_cast<Wide>(fluid::kWorkPerByte) / SlowestBps(graph);
  total_ns += 2 * static_cast<Wide>(graph.duration_ns.size());
  if (const int32_t slowdown = LargestSlowdown(graph); slowdown > 0) {
    total_ns += 2 * (total_ns * slowdown / fluid::kWhole);
  }
  Require(total_ns <= kMaxNs, "it may last longer than 2^60 ns");
}

void ValidateMemory(const Graph& graph) {
  Wide total_bytes = 0;
  for (size_t i = 0; i < graph.memory_pool.size(); ++i) {
    if (graph.memory_pool[i] == -1) continue;
    if (!Below(graph.memory_pool[i], static_cast<size_t>(graph.pools))) {
      RefuseOperation(i, "has a memory pool that does not exist");
    }
    if (graph.allocated_bytes[i] < 0 || graph.freed_bytes[i] < 0) {
      RefuseOperation(i, "allocates or frees a negative number of bytes");
    }
    total_bytes += Wide{graph.allocated_bytes[i]} + graph.freed_bytes[i];
  }
  Require(total_bytes < Wide{1} << 62, "2^62 bytes of memory or more");
}

void ValidateGates(const Graph& graph) {
  const size_t operations = graph.duration_ns.size();
  const auto gates = static_cast<size_t>(graph.gates);
  std::vector<bool> gated(graph.gated_operation.empty() ? 0 : operations);
  for (size_t row = 0; row < graph.gated_operation.size(); ++row) {
    Require(Below(graph.gated_operation[row], operations), "a gated operation does not exist");
    const auto operation = static_cast<size_t>(graph.gated_operation[row]);
    if (gated[operation]) RefuseOperation(operation, "has two gates");
    gated[operation] = true;
    if (!Below(graph.gated_gate[row], gates)) {
      RefuseOperation(operation, "has a gate that does not exist");
    }
    if (!Below(graph.gated_acked_by[row], operations)) {
      RefuseOperation(operation, "is acknowledged by an operation that does not exist");
    }
  }
  for (size_t row = 0; row < graph.mark_operation.size(); ++row) {
    Require(Below(graph.mark_operation[row], operations) && Below(graph.mark_gate[row], gates),
            "an iteration is marked by an operation, or for a gate, that does not exist");
  }
}

}  // namespace

void Validate(const Graph& graph) {
  ValidateShapes(graph);
  ValidateDevices(graph);
  ValidateOperations(graph);
  ValidateMemory(graph);
  ValidateGates(graph);
}

int64_t FindCycle(const Graph& graph) {
  const size_t count = graph.duration_ns.size();
  std::vector<uint32_t> missing(count);
  for (const int32_t next : graph.successor) ++missing[static_cast<size_t>(next)];
  std::vector<size_t> open;
  for (size_t i = 0; i < count; ++i) {
    if (missing[i] == 0) open.push_back(i);
  }
  while (!open.empty()) {
    const size_t at = open.back();
    open.pop_back();
    for (int64_t edge = graph.first_successor[at]; edge < graph.first_successor[at + 1]; ++edge) {
      const auto next = static_cast<size_t>(graph.successor[static_cast<size_t>(edge)]);
      if (--missing[next] == 0) open.push_back(next);
    }
  }
  // Whatever is left has a dependency that is left, too. So: back from one, until one comes again.
  std::vector<int64_t> before(count, -1);
  for (size_t i = 0; i < count; ++i) {
    if (missing[i] == 0) continue;
    for (int64_t edge = graph.first_successor[i]; edge < graph.first_successor[i + 1]; ++edge) {
      before[static_cast<size_t>(graph.successor[static_cast<size_t>(edge)])] =
          static_cast<int64_t>(i);
    }
  }
  const auto left = std::find_if(missing.begin(), missing.end(), [](uint32_t n) { return n > 0; });
  if (left == missing.end()) return -1;
  std::vector<bool> seen(count);
  int64_t at = left - missing.begin();
  while (!seen[static_cast<size_t>(at)]) {
    seen[static_cast<size_t>(at)] = true;
    at = before[static_cast<size_t>(at)];
  }
  return at;
}

}  // namespace prophet::graph
