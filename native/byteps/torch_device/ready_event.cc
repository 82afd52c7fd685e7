// In place of BytePS' torch/ready_event.cc: says when a tensor on a GPU is ready to be sent.
//
// BytePS' own needs CUDA's headers. torch's events are the same for all kinds of devices, so this
// file compiles with every build of torch.
#include "byteps/torch/ready_event.h"

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace byteps {
namespace torch {

namespace {

// Recorded on the calling thread's current stream of the GPU; Ready() may be called by any thread.
class RecordedEvent : public ReadyEvent {
 public:
  explicit RecordedEvent(int device) : event_(c10::DeviceType::CUDA) {
    const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
    event_.record(
        cuda.getStream(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device))));
  }
  bool Ready() const override { return event_.query(); }

 private:
  c10::Event event_;
};

}  // namespace

std::shared_ptr<ReadyEvent> RecordReadyEvent(int device) {
  if (device == CPU_DEVICE_ID) return nullptr;
  return std::make_shared<RecordedEvent>(device);
}

}  // namespace torch
}  // namespace byteps
