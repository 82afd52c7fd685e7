// See nccl.h: collectives of a one-rank communicator.
#include "nccl.h"

#include <cstring>

namespace {

size_t SizeBytes(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
  }
  return 0;
}

ncclResult_t Identity(const void* from, void* to, size_t count, ncclDataType_t type) {
  if (from != to) std::memmove(to, from, count * SizeBytes(type));
  return ncclSuccess;
}

}  // namespace

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess
             ? "no error"
             : "the host device supports one local rank per worker (BYTEPS_LOCAL_SIZE=1)";
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 0, sizeof(*id));
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId /*id*/, int rank) {
  *comm = nullptr;
  return size == 1 && rank == 0 ? ncclSuccess : ncclInvalidArgument;
}
ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() { return ncclSuccess; }
ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                        ncclRedOp_t /*op*/, int /*root*/, ncclComm_t /*comm*/,
                        cudaStream_t /*stream*/) {
  return Identity(from, to, count, type);
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type,
                           int /*root*/, ncclComm_t /*comm*/, cudaStream_t /*stream*/) {
  return Identity(from, to, count, type);
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t received_count,
                               ncclDataType_t type, ncclRedOp_t /*op*/, ncclComm_t /*comm*/,
                               cudaStream_t /*stream*/) {
  return Identity(from, to, received_count, type);
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t sent_count, ncclDataType_t type,
                           ncclComm_t /*comm*/, cudaStream_t /*stream*/) {
  return Identity(from, to, sent_count, type);
}
