// The part of the CUDA runtime interface that BytePS' worker core uses, on plain host memory.
//
// Holds where there is no CUDA: the "device" is the host, so a pointer is its own device pointer, a
// copy is a memcpy done before the call returns, and a stream or an event has nothing left to wait
// for. Thread safe: no state at all.
#pragma once

#include <cstddef>

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorCudartUnloading = 4,
  cudaErrorNotReady = 600
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4,
};

struct HostStream;
struct HostEvent;
using cudaStream_t = HostStream*;
using cudaEvent_t = HostEvent*;

inline constexpr unsigned int cudaEventBlockingSync = 1;
inline constexpr unsigned int cudaEventDisableTiming = 2;
inline constexpr unsigned int cudaHostRegisterDefault = 0;
inline constexpr unsigned int cudaHostRegisterMapped = 2;
inline constexpr unsigned int cudaStreamNonBlocking = 1;

const char* cudaGetErrorString(cudaError_t error);

cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);

cudaError_t cudaHostRegister(void* pointer, size_t size_bytes, unsigned int flags);
cudaError_t cudaHostUnregister(void* pointer);
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned int flags);
cudaError_t cudaMemcpy(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
