// Sending from a tensor's own memory: what patches 0032 and 0053 call.
//
// BytePS copies every gradient into a buffer in shared memory, pushes that, pulls the sum into it,
// and copies it back. The buffer is there for local ranks and for devices. A tensor in host memory,
// of a worker with one local rank, that is summed in place needs none: it belongs to BytePS until
// the operation is done, and a partition's answer comes only after its push has arrived.
#pragma once

#include <algorithm>
#include <string>

#include "byteps/common/global.h"
#include "scheduled.h"

namespace byteprophet {

// Whether every operation of the tensor needs a buffer, wherever the tensor is.
inline bool AlwaysStaged(const byteps::common::BytePSContext& context) {
  using byteps::common::BytePSGlobal;
  return !ps::PushesAreScheduled() || BytePSGlobal::GetLocalSize() > 1 ||
         !BytePSGlobal::IsDistributed() || !context.kwargs.empty() ||
         context.profile_flag;  // upstream's trace wants every stage
}

// One operation of a tensor is under way at a time, so nobody else looks at its context.
inline void SendFromTheTensor(byteps::common::TensorTableEntry* entry) {
  using byteps::common::BytePSGlobal;
  const bool staged = AlwaysStaged(*entry->context) || entry->device != CPU_DEVICE_ID ||
                      entry->tensor->data() != entry->output->data();
  if (staged) {
    void*& buffer = entry->context->cpubuff;
    if (buffer == nullptr) {
      buffer = BytePSGlobal::GetSharedMemoryObj()->openSharedMemory(
          "BytePS_ShM_", entry->context->key_list[0], entry->tensor->size());
      entry->cpubuff = buffer;
    }
    return;
  }
  entry->cpubuff = const_cast<void*>(entry->tensor->data());
  std::erase_if(entry->queue_list, [](byteps::common::QueueType stage) {
    return stage == byteps::common::COPYD2H || stage == byteps::common::COPYH2D;
  });
}

}  // namespace byteprophet
