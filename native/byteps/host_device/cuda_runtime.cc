// See cuda_runtime.h: every call completes before it returns.
#include "cuda_runtime.h"

#include <cstring>

const char* cudaGetErrorString(cudaError_t error) {
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

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int /*device*/) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = 0;
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* pointer, size_t /*size_bytes*/, unsigned int /*flags*/) {
  return pointer == nullptr ? cudaErrorInvalidValue : cudaSuccess;
}
cudaError_t cudaHostUnregister(void* /*pointer*/) { return cudaSuccess; }
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned int /*flags*/) {
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size_bytes, cudaMemcpyKind /*kind*/) {
  // A tensor that is its own staging buffer is copied onto itself: memmove, not memcpy.
  std::memmove(to, from, size_bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind,
                            cudaStream_t /*stream*/) {
  return cudaMemcpy(to, from, size_bytes, kind);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int /*flags*/) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags,
                                         int /*priority*/) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t /*stream*/) { return cudaSuccess; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int /*flags*/) {
  *event = nullptr;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t /*event*/, cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t /*event*/) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t /*event*/) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t /*event*/) { return cudaSuccess; }
