// The names of what BytePS calls of CUDA and NCCL.
#pragma once

// clang-format off
#define BYTEPROPHET_CUDA_CALLS(CALL)                                                              \
  CALL(cudaGetErrorString) CALL(cudaGetLastError)                                                 \
  CALL(cudaGetDevice) CALL(cudaGetDeviceCount) CALL(cudaSetDevice)                                \
  CALL(cudaDeviceGetStreamPriorityRange)                                                          \
  CALL(cudaHostRegister) CALL(cudaHostUnregister) CALL(cudaHostGetDevicePointer)                  \
  CALL(cudaMemcpy) CALL(cudaMemcpyAsync)                                                          \
  CALL(cudaStreamCreateWithFlags) CALL(cudaStreamCreateWithPriority)                              \
  CALL(cudaStreamSynchronize) CALL(cudaStreamDestroy)                                             \
  CALL(cudaEventCreateWithFlags) CALL(cudaEventRecord)                                            \
  CALL(cudaEventSynchronize) CALL(cudaEventDestroy)

#define BYTEPROPHET_NCCL_CALLS(CALL)                                                              \
  CALL(ncclGetErrorString)                                                                        \
  CALL(ncclGetUniqueId) CALL(ncclCommInitRank) CALL(ncclCommDestroy)                              \
  CALL(ncclGroupStart) CALL(ncclGroupEnd)                                                         \
  CALL(ncclReduce) CALL(ncclBroadcast) CALL(ncclReduceScatter) CALL(ncclAllGather)
// clang-format on
