// The host device: CUDA's and NCCL's calls on plain memory, for machines without a GPU. Includes
// nothing of BytePS; nccl.cc reads the environment that BytePS' processes have.
#pragma once

#include "calls.h"

namespace byteprophet {

extern const CudaCalls kHostCuda;
extern const NcclCalls kHostNccl;

}  // namespace byteprophet
