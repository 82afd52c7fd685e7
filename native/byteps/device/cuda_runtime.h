// The part of the CUDA runtime interface that BytePS' worker core uses, declared here, so that one
// build serves machines with and without CUDA: nothing of NVIDIA's is needed to compile or to link.
//
// The functions are C++ functions of ours, which go to the GPU or to the host (used_device.h).
// Names, argument types and values are CUDA's; tests/device/interface_test.cc compares them with
// NVIDIA's own headers.
#pragma once

#include <cstddef>

enum cudaError_t : unsigned int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorCudartUnloading = 4,
  cudaErrorNotReady = 600
};
enum cudaMemcpyKind : unsigned int {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4,
};

struct DeviceStream;
struct DeviceEvent;
using cudaStream_t = DeviceStream*;
using cudaEvent_t = DeviceEvent*;

inline constexpr unsigned int cudaEventBlockingSync = 1;
inline constexpr unsigned int cudaEventDisableTiming = 2;
inline constexpr unsigned int cudaHostRegisterDefault = 0;
inline constexpr unsigned int cudaHostRegisterMapped = 2;
inline constexpr unsigned int cudaStreamNonBlocking = 1;

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();  // of the calling thread, which then has none

cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceCount(int* count);
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
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
