#include "prophet/bound.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace byteprophet {
namespace {

int64_t IterationBoundNs(const std::vector<int64_t>& size_bytes,
                         const std::vector<int64_t>& ready_ns,
                         const std::vector<int64_t>& forward_ns, int64_t backward_ns,
                         std::optional<int64_t> bandwidth_bps, int64_t workers, int64_t servers,
                         std::optional<int64_t> server_bandwidth_bps) {
  return prophet::IterationBoundNs({.size_bytes = size_bytes,
                                    .ready_ns = ready_ns,
                                    .forward_ns = forward_ns,
                                    .backward_ns = backward_ns,
                                    .bandwidth_bps = bandwidth_bps,
                                    .workers = workers,
                                    .servers = servers,
                                    .server_bandwidth_bps = server_bandwidth_bps});
}

}  // namespace

void DefineBound(nb::module_& module) {
  module.def("iteration_bound_ns", &IterationBoundNs, "size_bytes"_a, "ready_ns"_a, "forward_ns"_a,
             nb::kw_only(), "backward_ns"_a, "bandwidth_bps"_a.none(), "workers"_a, "servers"_a,
             "server_bandwidth_bps"_a.none() = nb::none());
}

}  // namespace byteprophet
