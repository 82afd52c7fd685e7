// The device, as BytePS' torch files and Python see it: what patch 0045 calls.
#pragma once

#include <torch/extension.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "used_device.h"

namespace byteprophet {

// std::invalid_argument, in Python a ValueError, for a tensor on a GPU where the host is used.
inline void RefuseWithoutCuda(const ::torch::Tensor& tensor, const std::string& name) {
  if (!tensor.is_cuda() || UsedDevice().is_cuda) return;
  throw std::invalid_argument("'" + name + "' is on " + tensor.device().str() +
                              ", but BytePS uses the host, as " + UsedDevice().why +
                              ": train on the CPU, or change that (byteprophet doctor)");
}

// The device that a job started here would use, and why. std::invalid_argument if none can be.
inline std::pair<std::string, std::string> DeviceAndWhy() {
  const Device device = ChooseDevice();
  return {device.is_cuda ? "cuda" : "host", device.why};
}

}  // namespace byteprophet
