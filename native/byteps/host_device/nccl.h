// The part of the NCCL interface that BytePS' worker core uses, between processes of one machine.
//
// Ranks meet in shared memory (local_group.h). Streams of the host device have nothing to wait for:
// a collective is done when its call returns, or the outermost ncclGroupEnd where it is in a group.
// With one rank every collective is the identity. A communicator belongs to one thread at a time;
// groups and the text of the last error are per thread, as NCCL's are.
#pragma once

#include <cstddef>

#include "cuda_runtime.h"

enum ncclResult_t { ncclSuccess = 0, ncclInvalidArgument = 4, ncclRemoteError = 6 };
enum ncclDataType_t {
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
enum ncclRedOp_t { ncclSum = 0 };

struct HostComm;
using ncclComm_t = HostComm*;
struct ncclUniqueId {
  char internal[128];
};

// Of this thread's last error, with its reason.
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
