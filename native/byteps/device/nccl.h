// The part of the NCCL interface that BytePS' worker core uses; see cuda_runtime.h.
//
// A communicator belongs to one thread at a time; groups are per thread.
#pragma once

#include <cstddef>

#include "cuda_runtime.h"

enum ncclResult_t : unsigned int { ncclSuccess = 0, ncclInvalidArgument = 4, ncclRemoteError = 6 };
enum ncclDataType_t : unsigned int {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
};
enum ncclRedOp_t : unsigned int { ncclSum = 0 };

struct DeviceComm;
using ncclComm_t = DeviceComm*;
struct ncclUniqueId {
  char internal[128];
};

const char* ncclGetErrorString(ncclResult_t result);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t received_count,
                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream);
ncclResult_t ncclAllGather(const void* from, void* to, size_t sent_count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream);
