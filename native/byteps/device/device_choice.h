// Which device BytePS' calls go to: a GPU, or the host.
//
// BYTEPROPHET_DEVICE says which one is wanted: `cuda`, `host`, or `auto`, which is CUDA where it
// can be had: torch is built with it, and a driver shows a GPU for each local rank of the worker.
#pragma once

#include <string>

#include "cuda_libraries.h"

namespace byteprophet {

// What decides; local ranks must see the same, or their collectives do not match.
struct Circumstances {
  std::string wanted;      // auto, cuda or host
  std::string wanted_how;  // "BYTEPROPHET_DEVICE=host is set"
  CudaLibraries libraries;
  bool has_driver;
  int local_ranks;
};

struct Device {
  CudaCalls cuda;
  NcclCalls nccl;
  bool is_cuda;
  std::string why;  // continues "the host, as ..."
};

// Throws std::invalid_argument, with one line, if what is wanted cannot be had.
Device ChooseDevice(const Circumstances& circumstances);

// As the environment and this process are now; it must have loaded torch. Throws as above.
Device ChooseDevice();

}  // namespace byteprophet
