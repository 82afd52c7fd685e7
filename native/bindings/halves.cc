#include "prophet/halves.h"

#include <nanobind/stl/vector.h>

#include <tuple>
#include <utility>

#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace byteprophet {
namespace {

using Times = std::vector<int64_t>;

nb::tuple TimesOfHalves(const Times& ready_ns, const Times& reduce_ns, const Times& gather_ns,
                        const Times& reduce_place, const Times& gather_place,
                        const Times& after_step, int64_t step_ns) {
  auto found = prophet::TimesOfHalves({.ready_ns = ready_ns,
                                       .reduce_ns = reduce_ns,
                                       .gather_ns = gather_ns,
                                       .reduce_place = reduce_place,
                                       .gather_place = gather_place,
                                       .after_step = after_step,
                                       .step_ns = step_ns});
  return nb::make_tuple(std::move(found.reduce_start), std::move(found.reduce_end),
                        std::move(found.gather_start), std::move(found.gather_end));
}

}  // namespace

void DefineHalves(nb::module_& module) {
  module.def("times_of_halves", &TimesOfHalves, "ready_ns"_a, "reduce_ns"_a, "gather_ns"_a,
             "reduce_place"_a, "gather_place"_a, "after_step"_a, "step_ns"_a);
}

}  // namespace byteprophet
