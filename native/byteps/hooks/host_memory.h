// Tensors in host memory, in jobs whose device may be a GPU: what patch 0049 calls.
#pragma once

#include <utility>

#include "byteps/common/global.h"
#include "byteps/common/logging.h"
#include "registered_memory.h"

namespace byteprophet {

// Sets the address by which the device reaches the tensor of `entry`, if that is in host memory.
// NCCL's kernels need it registered until the operation is done; for copies it is good as it is.
inline void ReachHostMemory(byteps::common::TensorTableEntry* entry) {
  namespace common = byteps::common;  // CUDA_CALL needs it, too
  if (entry->device != CPU_DEVICE_ID) return;
  void* const data = const_cast<void*>(entry->tensor->data());
  if (common::BytePSGlobal::GetNccl()->GetSize() == 1) {
    entry->context->gpu_ptr = data;
    return;
  }
  const size_t size_bytes = entry->tensor->size();
  RegisteredMemory::OfProcess().Begin(data, size_bytes);
  CUDA_CALL(cudaHostGetDevicePointer(&entry->context->gpu_ptr, data, 0));
  entry->callback = [data, size_bytes,
                     callback = std::move(entry->callback)](const common::Status& status) {
    RegisteredMemory::OfProcess().End(data, size_bytes);
    callback(status);
  };
}

}  // namespace byteprophet
