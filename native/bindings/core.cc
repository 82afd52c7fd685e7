#include "bindings.h"

NB_MODULE(_core, module) {
  module.attr("__version__") = BYTEPROPHET_VERSION;
  byteprophet::DefinePolicy(module);
  byteprophet::DefineBound(module);
  byteprophet::DefineEngine(module);
  byteprophet::DefineGraph(module);
  byteprophet::DefineMesh(module);
}
