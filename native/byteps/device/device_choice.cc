// See device_choice.h.
#include "device_choice.h"

#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "host_calls.h"

namespace byteprophet {

namespace {

// Empty: CUDA can be used, and `count` is the number of GPUs.
std::string WhyNotCuda(const Circumstances& circumstances, int* count) {
  const CudaLibraries& libraries = circumstances.libraries;
  if (!libraries.missing.empty()) return libraries.missing;
  // CUDA itself says of this that the driver's version is insufficient.
  if (!circumstances.has_driver) return "this machine has no NVIDIA driver (libcuda.so.1)";
  if (const cudaError_t error = libraries.cuda.cudaGetDeviceCount(count); error != cudaSuccess)
    return std::string("CUDA finds no GPU: ") + libraries.cuda.cudaGetErrorString(error);
  if (*count < circumstances.local_ranks) {
    return "CUDA shows " + std::to_string(*count) + " GPU(s) for " +
           std::to_string(circumstances.local_ranks) + " local rank(s)";
  }
  return "";
}

Device Host(std::string why) { return {kHostCuda, kHostNccl, false, std::move(why)}; }

}  // namespace

Device ChooseDevice(const Circumstances& circumstances) {
  const std::string& wanted = circumstances.wanted;
  if (wanted == "host") return Host(circumstances.wanted_how);
  if (wanted != "auto" && wanted != "cuda")
    throw std::invalid_argument(circumstances.wanted_how + ": auto, cuda or host is expected");
  int count = 0;
  const std::string why_not = WhyNotCuda(circumstances, &count);
  if (why_not.empty()) {
    const CudaLibraries& libraries = circumstances.libraries;
    return {libraries.cuda, libraries.nccl, true,
            "CUDA shows " + std::to_string(count) + " GPU(s)"};
  }
  if (wanted == "cuda") {
    throw std::invalid_argument(circumstances.wanted_how + ", but " + why_not +
                                "; set BYTEPROPHET_DEVICE=host to train without a GPU");
  }
  return Host(why_not);
}

Device ChooseDevice() {
  Circumstances circumstances;
  const char* wanted = std::getenv("BYTEPROPHET_DEVICE");
  const bool is_set = wanted != nullptr && *wanted != '\0';
  circumstances.wanted = is_set ? wanted : BYTEPROPHET_BUILT_FOR_DEVICE;
  circumstances.wanted_how = "BYTEPROPHET_DEVICE=" + circumstances.wanted + " is set";
  if (!is_set) circumstances.wanted_how += ", when BytePS was built";
  circumstances.libraries = TorchsLibraries();
  circumstances.has_driver = HasDriver();
  const char* local_ranks = std::getenv("BYTEPS_LOCAL_SIZE");
  circumstances.local_ranks = local_ranks == nullptr ? 1 : std::atoi(local_ranks);
  return ChooseDevice(circumstances);
}

}  // namespace byteprophet
