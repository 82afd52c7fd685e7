// See used_device.h and cuda_runtime.h: every call goes on to the device that is used.
#include "used_device.h"

#include <cstdlib>
#include <iostream>
#include <stdexcept>

namespace byteprophet {

const Device& UsedDevice() {
  static const Device& device = *[] {
    try {
      return new Device(ChooseDevice());  // never destroyed: threads of BytePS outlive statics
    } catch (const std::invalid_argument& error) {
      std::cerr << "byteprophet: error: " << error.what() << std::endl;
      std::_Exit(2);
    }
  }();
  return device;
}

}  // namespace byteprophet

namespace {

const byteprophet::CudaCalls& Cuda() { return byteprophet::UsedDevice().cuda; }
const byteprophet::NcclCalls& Nccl() { return byteprophet::UsedDevice().nccl; }

}  // namespace

const char* cudaGetErrorString(cudaError_t error) { return Cuda().cudaGetErrorString(error); }
cudaError_t cudaGetLastError() { return Cuda().cudaGetLastError(); }

cudaError_t cudaGetDevice(int* device) { return Cuda().cudaGetDevice(device); }
cudaError_t cudaGetDeviceCount(int* count) { return Cuda().cudaGetDeviceCount(count); }
cudaError_t cudaSetDevice(int device) { return Cuda().cudaSetDevice(device); }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return Cuda().cudaDeviceGetStreamPriorityRange(least, greatest);
}

cudaError_t cudaHostRegister(void* pointer, size_t size_bytes, unsigned int flags) {
  return Cuda().cudaHostRegister(pointer, size_bytes, flags);
}
cudaError_t cudaHostUnregister(void* pointer) { return Cuda().cudaHostUnregister(pointer); }
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned int flags) {
  return Cuda().cudaHostGetDevicePointer(device, host, flags);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind) {
  return Cuda().cudaMemcpy(to, from, size_bytes, kind);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return Cuda().cudaMemcpyAsync(to, from, size_bytes, kind, stream);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return Cuda().cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  return Cuda().cudaStreamCreateWithPriority(stream, flags, priority);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return Cuda().cudaStreamSynchronize(stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return Cuda().cudaStreamDestroy(stream); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return Cuda().cudaEventCreateWithFlags(event, flags);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return Cuda().cudaEventRecord(event, stream);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return Cuda().cudaEventSynchronize(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return Cuda().cudaEventDestroy(event); }

const char* ncclGetErrorString(ncclResult_t result) { return Nccl().ncclGetErrorString(result); }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return Nccl().ncclGetUniqueId(id); }
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  return Nccl().ncclCommInitRank(comm, size, id, rank);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return Nccl().ncclCommDestroy(comm); }
ncclResult_t ncclGroupStart() { return Nccl().ncclGroupStart(); }
ncclResult_t ncclGroupEnd() { return Nccl().ncclGroupEnd(); }
ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return Nccl().ncclReduce(from, to, count, type, op, root, comm, stream);
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return Nccl().ncclBroadcast(from, to, count, type, root, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t received_count,
                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  return Nccl().ncclReduceScatter(from, to, received_count, type, op, comm, stream);
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t sent_count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return Nccl().ncclAllGather(from, to, sent_count, type, comm, stream);
}
