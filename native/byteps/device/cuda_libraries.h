// CUDA and NCCL of the torch in this process: the very libraries that torch uses, whatever their
// version, so that both share streams, events and memory.
#pragma once

#include <string>

#include "calls.h"

namespace byteprophet {

struct CudaLibraries {
  CudaCalls cuda;
  NcclCalls nccl;
  std::string missing;  // what was not found; empty: all calls are there
};

// Looks each call up in a library, or in those that it depends on. A null handle, as dlopen gives,
// is a library that is not there; the names are for `missing`.
CudaLibraries FindCalls(void* cuda, const char* cuda_name, void* nccl, const char* nccl_name);

// Of the torch in this process; it must be loaded before. Libraries are not loaded for this, but
// for NCCL where torch has its own built in.
CudaLibraries TorchsLibraries();

// Whether this machine has NVIDIA's driver.
bool HasDriver();

}  // namespace byteprophet
