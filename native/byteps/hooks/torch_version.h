// The torch that BytePS was built for: what patch 0046 calls.
#pragma once

#include <torch/extension.h>
#include <torch/version.h>

#include <string>

namespace byteprophet {

// An ImportError where another torch is installed: layouts in memory differ between its releases.
inline void RefuseOtherTorch() {
  const auto version = pybind11::module_::import("torch").attr("__version__").cast<std::string>();
  const std::string built_for =
      std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR);
  if (version.starts_with(built_for + ".")) return;
  throw pybind11::import_error("BytePS was built for torch " + built_for + ", but torch " +
                               version + " is installed: build byteprophet again (pip install .)");
}

}  // namespace byteprophet
