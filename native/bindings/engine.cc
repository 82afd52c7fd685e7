// A simulated job from arrays to arrays. The GIL is free while it runs: nothing of Python is in it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "prophet/engine/fabric.h"
#include "prophet/engine/job.h"
#include "prophet/registry.h"

namespace nb = nanobind;
using namespace nb::literals;
namespace engine = prophet::engine;

namespace byteprophet {
namespace {

nb::object Bytes(const std::vector<engine::Transfer>& transfers) {
  std::vector<uint8_t> bytes(transfers.size() * sizeof(engine::Transfer));
  if (!bytes.empty()) std::memcpy(bytes.data(), transfers.data(), bytes.size());
  return Array(std::move(bytes), {transfers.size() * sizeof(engine::Transfer)});
}

nb::object Uses(const engine::Result& result, int64_t engine::LinkUse::*field) {
  std::vector<int64_t> values;
  for (const auto* direction : {&result.up, &result.down}) {
    for (const engine::LinkUse& use : *direction) values.push_back(use.*field);
  }
  return Array(std::move(values), {2, result.up.size()});
}

// What a profile of the job says.
std::vector<prophet::ReadyTime> ReadyTimes(const engine::Job& job) {
  std::vector<prophet::ReadyTime> times;
  int64_t first_ns = job.backward_ns;
  for (const int64_t ready_ns : job.ready_ns) first_ns = std::min(first_ns, ready_ns);
  for (size_t tensor = 0; tensor < job.ready_ns.size(); ++tensor) {
    times.push_back({tensor, engine::PriorityOf(static_cast<int64_t>(tensor)),
                     job.ready_ns[tensor] - first_ns, 0});
  }
  return times;
}

nb::dict Simulate(const std::string& scheduler, const prophet::Settings& settings,
                  const In<int64_t>& forward_ns, const In<int64_t>& ready_ns,
                  const In<int64_t>& first_partition, const In<int64_t>& size_bytes,
                  const In<int32_t>& server, int64_t backward_ns, int64_t iterations,
                  const In<int64_t>& worker_bandwidth_bps, const In<int64_t>& server_bandwidth_bps,
                  int64_t delay_ns, int64_t message_cost_ns, int64_t sum_bps, int64_t sum_threads,
                  bool answer_by_priority, bool stock_transport, bool barrier, bool known_profile,
                  bool record) {
  const engine::Job job{.forward_ns = SpanOf(forward_ns),
                        .ready_ns = SpanOf(ready_ns),
                        .first_partition = SpanOf(first_partition),
                        .size_bytes = SpanOf(size_bytes),
                        .server = SpanOf(server),
                        .backward_ns = backward_ns,
                        .iterations = iterations,
                        .worker_bandwidth_bps = SpanOf(worker_bandwidth_bps),
                        .server_bandwidth_bps = SpanOf(server_bandwidth_bps),
                        .delay_ns = delay_ns,
                        .message_cost_ns = message_cost_ns,
                        .sum_bps = sum_bps,
                        .sum_threads = sum_threads,
                        .answer_by_priority = answer_by_priority,
                        .stock_transport = stock_transport,
                        .barrier = barrier,
                        .record = record};
  engine::Result result;
  {
    nb::gil_scoped_release free_gil;
    result = engine::Simulate(job, [&] {
      auto policy = prophet::MakePolicy(scheduler, settings);
      if (known_profile) policy->SetReadyTimes(ReadyTimes(job));
      return policy;
    });
  }
  const size_t workers = worker_bandwidth_bps.size();
  const auto rounds = static_cast<size_t>(iterations);
  nb::list transfers;
  for (const auto& of_worker : result.transfers) transfers.append(Bytes(of_worker));
  nb::dict out;
  out["busy_ns"] = Uses(result, &engine::LinkUse::busy_ns);
  out["bytes"] = Uses(result, &engine::LinkUse::bytes);
  out["messages"] = Uses(result, &engine::LinkUse::messages);
  out["start_ns"] = Array(std::move(result.start_ns), {workers, rounds + 1});
  out["backward_start_ns"] = Array(std::move(result.backward_start_ns), {workers, rounds});
  out["transfers"] = transfers;
  out["end_ns"] = result.end_ns;
  out["events"] = result.events;
  return out;
}

}  // namespace

void DefineEngine(nb::module_& module) {
  module.attr("MAX_MESSAGE_COST_NS") = engine::kMaxMessageCostNs;
  module.def("simulate", &Simulate, "scheduler"_a, "settings"_a, nb::kw_only(), "forward_ns"_a,
             "ready_ns"_a, "first_partition"_a, "size_bytes"_a, "server"_a, "backward_ns"_a,
             "iterations"_a, "worker_bandwidth_bps"_a, "server_bandwidth_bps"_a, "delay_ns"_a = 0,
             "message_cost_ns"_a = 0, "sum_bps"_a = 0, "sum_threads"_a = 1,
             "answer_by_priority"_a = false, "stock_transport"_a = false, "barrier"_a = false,
             "known_profile"_a = false, "record"_a = false);
}

}  // namespace byteprophet
