// Sending from a tensor's own memory: what patch 0032 calls.
//
// BytePS copies every gradient into a buffer in shared memory, pushes that, pulls the sum into it,
// and copies it back. The buffer is there for local ranks and for devices. A tensor in host memory,
// of a worker with one local rank, that is summed in place needs none: it belongs to BytePS until
// the operation is done, and a partition's answer comes only after its push has arrived.
#pragma once

#include <algorithm>

#include "byteps/common/global.h"
#include "scheduled.h"

namespace byteprophet {

inline void SendFromTheTensor(byteps::common::TensorTableEntry* entry) {
  using byteps::common::BytePSGlobal;
  const bool staged = !ps::PushesAreScheduled() || entry->device != CPU_DEVICE_ID ||
                      BytePSGlobal::GetLocalSize() > 1 || !BytePSGlobal::IsDistributed() ||
                      !entry->context->compressor_list.empty() ||
                      entry->context->profile_flag ||  // upstream's trace wants every stage
                      entry->tensor->data() != entry->output->data();
  if (staged) return;
  entry->cpubuff = const_cast<void*>(entry->tensor->data());
  std::erase_if(entry->queue_list, [](byteps::common::QueueType stage) {
    return stage == byteps::common::COPYD2H || stage == byteps::common::COPYH2D;
  });
}

}  // namespace byteprophet
