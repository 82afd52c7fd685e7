#include "bindings.h"
#include "sources.h"

NB_MODULE(_core, module) {
  // A mesh is closed at exit, but its object outlives the interpreter: torch's hooks hold it. The
  // warning would end every job's output.
  nanobind::set_leak_warnings(false);
  module.attr("__version__") = BYTEPROPHET_VERSION;
  module.attr("SOURCES") = BYTEPROPHET_SOURCES;
  byteprophet::DefinePolicy(module);
  byteprophet::DefineBound(module);
  byteprophet::DefineHalves(module);
  byteprophet::DefineEngine(module);
  byteprophet::DefineGraph(module);
  byteprophet::DefineMesh(module);
}
