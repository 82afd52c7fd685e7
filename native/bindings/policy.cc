// Policies as Python objects. Not thread safe, and the GIL is held throughout: no call is long.
#include "prophet/policy.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "byteps/answers/flow.h"
#include "prophet/policy/prophet.h"
#include "prophet/registry.h"
#include "prophet/settings_text.h"

namespace nb = nanobind;
using namespace nb::literals;
using prophet::Decision;
using prophet::Policy;
using prophet::TimeNs;

namespace byteprophet {
namespace {

// (tensor, priority, ready_ns, spread_ns)
using ReadyTuple = std::tuple<uint64_t, int32_t, TimeNs, TimeNs>;

nb::tuple Next(Policy& policy, TimeNs now_ns) {
  const Decision decision = policy.Next(now_ns);
  switch (decision.kind) {
    case Decision::Kind::kSend:
      return nb::make_tuple("send", decision.item.key, decision.item.server, decision.item.priority,
                            decision.item.bytes);
    case Decision::Kind::kWaitUntil:
      return nb::make_tuple("wait_until", decision.ask_again_ns);
    case Decision::Kind::kIdle:
      return nb::make_tuple("idle");
  }
  throw std::logic_error("a decision of no known kind");
}

void SetReadyTimes(Policy& policy, const std::vector<ReadyTuple>& times) {
  std::vector<prophet::ReadyTime> converted;
  converted.reserve(times.size());
  for (const auto& [tensor, priority, ready_ns, spread_ns] : times) {
    converted.push_back({tensor, priority, ready_ns, spread_ns});
  }
  policy.SetReadyTimes(converted);
}

}  // namespace

void DefinePolicy(nb::module_& module) {
  module.attr("ANSWERS_BYTES") = Flow::kFloorBytes;
  module.attr("ACKS_WAIT_BYTES") = prophet::ProphetPolicy::kAcksWaitBytes;
  module.def("policy_names", &prophet::PolicyNames);
  module.def("default_settings", &prophet::DefaultSettings, "name"_a);
  module.def("parse_settings", &prophet::ParseSettings, "text"_a);

  nb::class_<Policy>(module, "Policy", nb::is_final())
      .def(nb::new_([](std::string_view name, const prophet::Settings& settings) {
             return prophet::MakePolicy(name, settings);
           }),
           "name"_a, "settings"_a = prophet::Settings{})
      .def(
          "on_ready",
          [](Policy& policy, uint64_t key, uint32_t server, int32_t priority, uint64_t size_bytes,
             TimeNs now_ns) { policy.OnReady({key, server, priority, size_bytes}, now_ns); },
          "key"_a, "server"_a, "priority"_a, "size_bytes"_a, "now_ns"_a)
      .def(
          "on_acked",
          [](Policy& policy, uint64_t key, TimeNs now_ns) { policy.OnAcked({.key = key}, now_ns); },
          "key"_a, "now_ns"_a)
      .def("on_iteration", &Policy::OnIteration, "now_ns"_a)
      .def("next", &Next, "now_ns"_a)
      .def("set_ready_times", &SetReadyTimes, "times"_a)
      .def("reconfigure", &Policy::Reconfigure, "overrides"_a)
      .def_prop_ro("preferred_partition_bytes", &Policy::PreferredPartitionBytes)
      .def_prop_ro("settings", &Policy::settings)
      .def_prop_ro("pending", &Policy::pending)
      .def_prop_ro("name", &Policy::name);
}

}  // namespace byteprophet
