// CUDA's calls on plain host memory: the "device" is the host, so a pointer is its own device
// pointer, a copy is done when the call returns, and a stream or an event has nothing to wait for.
// Thread safe: no state at all.
#include <cstring>

#include "host_calls.h"

namespace byteprophet {
namespace {

const char* GetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorCudartUnloading:
      return "driver shutting down";
    case cudaErrorNotReady:
      return "device not ready";
  }
  return "unrecognized error code";
}

cudaError_t GetLastError() { return cudaSuccess; }

cudaError_t GetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t GetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t SetDevice(int /*device*/) { return cudaSuccess; }
cudaError_t DeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = 0;
  return cudaSuccess;
}

cudaError_t HostRegister(void* pointer, size_t /*size_bytes*/, unsigned int /*flags*/) {
  return pointer == nullptr ? cudaErrorInvalidValue : cudaSuccess;
}
cudaError_t HostUnregister(void* /*pointer*/) { return cudaSuccess; }
cudaError_t HostGetDevicePointer(void** device, void* host, unsigned int /*flags*/) {
  *device = host;
  return cudaSuccess;
}
cudaError_t Memcpy(void* to, const void* from, size_t size_bytes, cudaMemcpyKind /*kind*/) {
  // A tensor that is its own staging buffer is copied onto itself: memmove, not memcpy.
  std::memmove(to, from, size_bytes);
  return cudaSuccess;
}
cudaError_t MemcpyAsync(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind,
                        cudaStream_t /*stream*/) {
  return Memcpy(to, from, size_bytes, kind);
}

cudaError_t StreamCreateWithFlags(cudaStream_t* stream, unsigned int /*flags*/) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t StreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int /*priority*/) {
  return StreamCreateWithFlags(stream, flags);
}
cudaError_t StreamSynchronize(cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t StreamDestroy(cudaStream_t /*stream*/) { return cudaSuccess; }

cudaError_t EventCreateWithFlags(cudaEvent_t* event, unsigned int /*flags*/) {
  *event = nullptr;
  return cudaSuccess;
}
cudaError_t EventRecord(cudaEvent_t /*event*/, cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t EventSynchronize(cudaEvent_t /*event*/) { return cudaSuccess; }
cudaError_t EventDestroy(cudaEvent_t /*event*/) { return cudaSuccess; }

}  // namespace

const CudaCalls kHostCuda = {
    .cudaGetErrorString = GetErrorString,
    .cudaGetLastError = GetLastError,
    .cudaGetDevice = GetDevice,
    .cudaGetDeviceCount = GetDeviceCount,
    .cudaSetDevice = SetDevice,
    .cudaDeviceGetStreamPriorityRange = DeviceGetStreamPriorityRange,
    .cudaHostRegister = HostRegister,
    .cudaHostUnregister = HostUnregister,
    .cudaHostGetDevicePointer = HostGetDevicePointer,
    .cudaMemcpy = Memcpy,
    .cudaMemcpyAsync = MemcpyAsync,
    .cudaStreamCreateWithFlags = StreamCreateWithFlags,
    .cudaStreamCreateWithPriority = StreamCreateWithPriority,
    .cudaStreamSynchronize = StreamSynchronize,
    .cudaStreamDestroy = StreamDestroy,
    .cudaEventCreateWithFlags = EventCreateWithFlags,
    .cudaEventRecord = EventRecord,
    .cudaEventSynchronize = EventSynchronize,
    .cudaEventDestroy = EventDestroy,
};

}  // namespace byteprophet
