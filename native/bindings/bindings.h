// The parts of the module byteprophet._core. What each defines is described in _core.pyi.
// C++ exceptions of type std::invalid_argument become ValueError with the same text.
#pragma once

#include <nanobind/nanobind.h>

namespace byteprophet {

void DefinePolicy(nanobind::module_& module);
void DefineBound(nanobind::module_& module);
void DefineHalves(nanobind::module_& module);
void DefineEngine(nanobind::module_& module);
void DefineGraph(nanobind::module_& module);
void DefineMesh(nanobind::module_& module);

}  // namespace byteprophet
