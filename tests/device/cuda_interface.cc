// Our declarations of CUDA's calls and NVIDIA's: compiled once for each release of CUDA.
#include <algorithm>

#include "abi.h"

namespace ours {
#include "native/byteps/device/cuda_runtime.h"
// Of NVIDIA's these are macros, so ours are taken before its header is there.
inline constexpr unsigned int kFlags[] = {cudaEventBlockingSync, cudaEventDisableTiming,
                                          cudaHostRegisterDefault, cudaHostRegisterMapped,
                                          cudaStreamNonBlocking};
}  // namespace ours

#include <cuda_runtime_api.h>

#include "native/byteps/device/call_names.h"

BYTEPROPHET_CUDA_CALLS(SAME_CALL)

SAME_VALUE(cudaSuccess)
SAME_VALUE(cudaErrorInvalidValue)
SAME_VALUE(cudaErrorCudartUnloading)
SAME_VALUE(cudaErrorNotReady)
SAME_VALUE(cudaMemcpyHostToHost)
SAME_VALUE(cudaMemcpyHostToDevice)
SAME_VALUE(cudaMemcpyDeviceToHost)
SAME_VALUE(cudaMemcpyDeviceToDevice)
SAME_VALUE(cudaMemcpyDefault)

constexpr unsigned int kTheirFlags[] = {cudaEventBlockingSync, cudaEventDisableTiming,
                                        cudaHostRegisterDefault, cudaHostRegisterMapped,
                                        cudaStreamNonBlocking};
static_assert(std::ranges::equal(ours::kFlags, kTheirFlags), "a flag has another value");
