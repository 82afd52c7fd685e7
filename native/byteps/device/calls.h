// What BytePS calls of CUDA and NCCL, as tables of functions: one table is the host device's
// (host_device/host_calls.h), one is found in torch's libraries (cuda_libraries.h).
#pragma once

#include "call_names.h"
#include "cuda_runtime.h"
#include "nccl.h"

namespace byteprophet {

#define BYTEPROPHET_MEMBER(name) decltype(&::name) name;
struct CudaCalls {
  BYTEPROPHET_CUDA_CALLS(BYTEPROPHET_MEMBER)
};
struct NcclCalls {
  BYTEPROPHET_NCCL_CALLS(BYTEPROPHET_MEMBER)
};
#undef BYTEPROPHET_MEMBER

}  // namespace byteprophet
