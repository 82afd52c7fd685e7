// Graphs from arrays to arrays. The GIL is free while one is replayed: nothing of Python is in it.
//
// A graph comes as one dict of arrays, named as the fields of prophet::graph::Graph; devices as
// columns. A gate is (policy, settings, ready times as Policy.set_ready_times takes them).
#include "prophet/graph/graph.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "prophet/registry.h"

namespace nb = nanobind;
using namespace nb::literals;
namespace graph = prophet::graph;

namespace byteprophet {
namespace {

using ReadyTuple = std::tuple<uint64_t, int32_t, prophet::TimeNs, prophet::TimeNs>;
using GateTuple = std::tuple<std::string, prophet::Settings, std::vector<ReadyTuple>>;

// A graph and the arrays that it refers to.
class Owned {
 public:
  explicit Owned(const nb::dict& arrays) : arrays_(arrays) {
    Read("duration_ns", graph_.duration_ns);
    Read("device", graph_.device);
    Read("size_bytes", graph_.size_bytes);
    Read("latency_ns", graph_.latency_ns);
    Read("release_ns", graph_.release_ns);
    Read("priority", graph_.priority);
    Read("first_successor", graph_.first_successor);
    Read("successor", graph_.successor);
    Read("memory_pool", graph_.memory_pool);
    Read("allocated_bytes", graph_.allocated_bytes);
    Read("freed_bytes", graph_.freed_bytes);
    Read("link_bps", graph_.link_bps);
    Read("link_burst_bytes", graph_.link_burst_bytes);
    Read("gated_operation", graph_.gated_operation);
    Read("gated_gate", graph_.gated_gate);
    Read("gated_key", graph_.gated_key);
    Read("gated_server", graph_.gated_server);
    Read("gated_priority", graph_.gated_priority);
    Read("gated_acked_by", graph_.gated_acked_by);
    Read("mark_operation", graph_.mark_operation);
    Read("mark_gate", graph_.mark_gate);
    graph_.pools = nb::cast<int32_t>(arrays_["pools"]);
    graph_.gates = nb::cast<int32_t>(arrays_["gates"]);
    ReadDevices();
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  const graph::Graph& get() const { return graph_; }

 private:
  template <typename T>
  void Read(const char* name, std::span<const T>& to) {
    // Not converted: the span refers to the array in the dict.
    to = SpanOf(nb::cast<In<T>>(arrays_[name], false));
  }

  void ReadDevices() {
    std::span<const int64_t> units, first_route;
    std::span<const uint8_t> is_connection, by_priority, cost_on_first_link;
    std::span<const int32_t> route, weights, overlap_group, overlap_slowdown;
    Read("device_units", units);
    Read("device_is_connection", is_connection);
    Read("device_by_priority", by_priority);
    Read("device_cost_on_first_link", cost_on_first_link);
    Read("device_first_route", first_route);
    Read("device_route", route);
    Read("device_weights", weights);
    Read("device_overlap_group", overlap_group);
    Read("device_overlap_slowdown", overlap_slowdown);
    for (size_t i = 0; i < units.size(); ++i) {
      const auto first = static_cast<size_t>(first_route[i]);
      const auto end = static_cast<size_t>(first_route[i + 1]);
      devices_.push_back({.kind = is_connection[i] != 0 ? graph::Device::Kind::kConnection
                                                        : graph::Device::Kind::kSerial,
                          .by_priority = by_priority[i] != 0,
                          .cost_on_first_link = cost_on_first_link[i] != 0,
                          .units = units[i],
                          .route = route.subspan(first, end - first),
                          .weights = weights.subspan(first, end - first),
                          .overlap_group = overlap_group[i],
                          .overlap_slowdown = overlap_slowdown[i]});
    }
    graph_.devices = devices_;
  }

  // Keeps the arrays, too.
  nb::dict arrays_;
  std::vector<graph::Device> devices_;
  graph::Graph graph_;
};

// ValueError(text, operation) for what is refused; operation is -1 where none is named.
template <typename Do>
auto OrValueError(const Do& run) {
  try {
    return run();
  } catch (const graph::Refused& refused) {
    PyErr_SetObject(PyExc_ValueError, nb::make_tuple(refused.what(), refused.operation()).ptr());
    throw nb::python_error();
  }
}

nb::dict Replay(const nb::dict& arrays, const std::vector<GateTuple>& gates) {
  const Owned owned(arrays);
  graph::Result result = OrValueError([&] {
    nb::gil_scoped_release free_gil;
    return graph::Replay(owned.get(), [&](size_t gate) {
      const auto& [name, settings, times] = gates[gate];
      auto policy = prophet::MakePolicy(name, settings);
      std::vector<prophet::ReadyTime> ready;
      for (const auto& [tensor, priority, ready_ns, spread_ns] : times) {
        ready.push_back({tensor, priority, ready_ns, spread_ns});
      }
      if (!ready.empty()) policy->SetReadyTimes(ready);
      return policy;
    });
  });
  nb::dict out;
  out["ready_ns"] = Array(std::move(result.ready_ns));
  out["start_ns"] = Array(std::move(result.start_ns));
  out["end_ns"] = Array(std::move(result.end_ns));
  out["held_by"] = Array(std::move(result.held_by));
  out["sent_ns"] = Array(std::move(result.sent_ns));
  out["device_busy_ns"] = Array(std::move(result.device_busy_ns));
  out["device_bytes"] = Array(std::move(result.device_bytes));
  out["link_busy_ns"] = Array(std::move(result.link_busy_ns));
  out["link_bytes"] = Array(std::move(result.link_bytes));
  out["peak_bytes"] = Array(std::move(result.peak_bytes));
  out["makespan_ns"] = result.makespan_ns;
  return out;
}

nb::object CriticalPath(const In<int64_t>& first_successor, const In<int32_t>& successor,
                        const In<int64_t>& latency_ns, const In<int64_t>& ready_ns,
                        const In<int64_t>& end_ns, const In<int32_t>& held_by) {
  const size_t count = end_ns.size();
  if (first_successor.size() != count + 1 || ready_ns.size() != count || held_by.size() != count ||
      latency_ns.size() != count) {
    throw std::invalid_argument("critical path: the columns differ in length");
  }
  return Array(graph::CriticalPath(SpanOf(first_successor), SpanOf(successor), SpanOf(latency_ns),
                                   SpanOf(ready_ns), SpanOf(end_ns), SpanOf(held_by)));
}

nb::object Closure(const nb::dict& arrays, const In<int32_t>& wanted) {
  const Owned owned(arrays);
  return Array(OrValueError([&] { return graph::Closure(owned.get(), SpanOf(wanted)); }));
}

}  // namespace

void DefineGraph(nb::module_& module) {
  module.def("replay", &Replay, "graph"_a, "gates"_a);
  module.def("critical_path", &CriticalPath, nb::kw_only(), "first_successor"_a, "successor"_a,
             "latency_ns"_a, "ready_ns"_a, "end_ns"_a, "held_by"_a);
  module.def("graph_closure", &Closure, "graph"_a, "wanted"_a);
}

}  // namespace byteprophet
