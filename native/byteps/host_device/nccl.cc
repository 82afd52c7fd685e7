// NCCL's calls between processes of one machine, translated for LocalGroup (local_group.h).
//
// A collective is done when its call returns, or the outermost GroupEnd where it is in a group.
// With one rank every collective is the identity. Groups and the text of the last error are per
// thread.
#include <sys/random.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host_calls.h"
#include "local_group.h"

struct DeviceComm {
  std::unique_ptr<byteprophet::LocalGroup> group;  // null: one rank
};

namespace byteprophet {
namespace {

constexpr double kDefaultTimeoutS = 1800;
constexpr double kLongestTimeoutS = 1e6;

thread_local std::string last_error;
thread_local int group_depth = 0;
thread_local std::vector<std::pair<LocalGroup*, Collective>> posted;  // in the open group

ncclResult_t Refuse(const std::string& why) {
  last_error = why;
  return ncclInvalidArgument;
}

std::optional<ElementType> ElementTypeOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return ElementType::kInt8;
    case ncclInt32:
    case ncclUint32:
      return ElementType::kInt32;
    case ncclInt64:
    case ncclUint64:
      return ElementType::kInt64;
    case ncclFloat16:
      return ElementType::kFloat16;
    case ncclFloat32:
      return ElementType::kFloat32;
    case ncclFloat64:
      return ElementType::kFloat64;
  }
  return std::nullopt;
}

// The same limit that the waits of the PyTorch front have, which refuses a wrong one later.
std::chrono::nanoseconds Timeout() {
  const char* text = std::getenv("BYTEPROPHET_TIMEOUT_S");
  const double given_s = text == nullptr ? 0 : std::strtod(text, nullptr);
  const bool makes_sense = given_s > 0 && given_s < kLongestTimeoutS;
  const std::chrono::duration<double> timeout(makes_sense ? given_s : kDefaultTimeoutS);
  return std::chrono::duration_cast<std::chrono::nanoseconds>(timeout);
}

std::string EnvironmentOr(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

ncclResult_t RunPosted() {
  const auto calls = std::exchange(posted, {});
  try {
    for (size_t next = 0; next < calls.size();) {
      LocalGroup* const group = calls[next].first;
      std::vector<Collective> batch;
      for (; next < calls.size() && calls[next].first == group; ++next)
        batch.push_back(calls[next].second);
      group->Run(batch);
    }
  } catch (const LocalGroupError& error) {
    last_error = error.what();
    return ncclRemoteError;
  }
  return ncclSuccess;
}

ncclResult_t Post(Collective::Kind kind, const void* from, void* to, size_t count,
                  ncclDataType_t type, int root, ncclComm_t comm) {
  const auto element = ElementTypeOf(type);
  if (!element) return Refuse("unknown data type " + std::to_string(type));
  LocalGroup* const group = comm->group.get();
  const int size = group == nullptr ? 1 : group->size();
  if (root < 0 || root >= size) {
    return Refuse("root " + std::to_string(root) + ": local ranks are 0 to " +
                  std::to_string(size - 1) + " (BYTEPS_REDUCE_ROOTS names roots)");
  }
  if (group == nullptr) {
    if (from != to) std::memmove(to, from, count * SizeBytes(*element));
    return ncclSuccess;
  }
  posted.push_back({group, {kind, *element, count, from, to, root}});
  return group_depth > 0 ? ncclSuccess : RunPosted();
}

const char* GetErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error" : last_error.c_str();
}

// The name that the ranks meet at. It begins like those of BytePS' own shared memory, so that
// whoever cleans up after a job that was killed in that moment finds it.
ncclResult_t GetUniqueId(ncclUniqueId* id) {
  std::array<uint64_t, 2> random;
  if (getrandom(random.data(), sizeof(random), 0) != sizeof(random))
    return Refuse("no random numbers");
  std::memset(id, 0, sizeof(*id));
  std::snprintf(
      id->internal, sizeof(id->internal), "BytePS_Nccl_%s_%s_%s_%016llx%016llx",
      EnvironmentOr("DMLC_PS_ROOT_PORT", "").c_str(), EnvironmentOr("DMLC_WORKER_ID", "").c_str(),
      EnvironmentOr("BYTEPROPHET_SHARED_MEMORY", "").c_str(),
      static_cast<unsigned long long>(random[0]), static_cast<unsigned long long>(random[1]));
  return ncclSuccess;
}

ncclResult_t CommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  *comm = nullptr;
  if (size < 1 || size > LocalGroup::kMostRanks || rank < 0 || rank >= size) {
    return Refuse("local rank " + std::to_string(rank) + " of " + std::to_string(size) +
                  ": the host device has 1 to " + std::to_string(LocalGroup::kMostRanks));
  }
  // More than one communicator means more than one "PCIe switch": BytePS then lets the root copy
  // the next gradient over a sum that ranks of another switch have not fetched yet.
  if (const std::string all = EnvironmentOr("BYTEPS_LOCAL_SIZE", "");
      !all.empty() && all != std::to_string(size)) {
    return Refuse("BYTEPS_PCIE_SWITCH_SIZE makes " + std::to_string(size) + " of " + all +
                  " local ranks a group of their own, which gives wrong sums; set it to " + all);
  }
  try {
    auto made = std::make_unique<DeviceComm>();
    if (size > 1) {
      made->group = std::make_unique<LocalGroup>(
          std::string(id.internal, strnlen(id.internal, sizeof(id.internal))), rank, size,
          Timeout());
    }
    *comm = made.release();
  } catch (const LocalGroupError& error) {
    last_error = error.what();
    return ncclRemoteError;
  }
  return ncclSuccess;
}

ncclResult_t CommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}

ncclResult_t GroupStart() {
  ++group_depth;
  return ncclSuccess;
}
ncclResult_t GroupEnd() { return --group_depth > 0 ? ncclSuccess : RunPosted(); }

ncclResult_t Reduce(const void* from, void* to, size_t count, ncclDataType_t type,
                    ncclRedOp_t /*op*/, int root, ncclComm_t comm, cudaStream_t /*stream*/) {
  return Post(Collective::Kind::kReduce, from, to, count, type, root, comm);
}
ncclResult_t Broadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                       ncclComm_t comm, cudaStream_t /*stream*/) {
  return Post(Collective::Kind::kBroadcast, from, to, count, type, root, comm);
}
ncclResult_t ReduceScatter(const void* from, void* to, size_t received_count, ncclDataType_t type,
                           ncclRedOp_t /*op*/, ncclComm_t comm, cudaStream_t /*stream*/) {
  return Post(Collective::Kind::kReduceScatter, from, to, received_count, type, 0, comm);
}
ncclResult_t AllGather(const void* from, void* to, size_t sent_count, ncclDataType_t type,
                       ncclComm_t comm, cudaStream_t /*stream*/) {
  return Post(Collective::Kind::kAllGather, from, to, sent_count, type, 0, comm);
}

}  // namespace

const NcclCalls kHostNccl = {
    .ncclGetErrorString = GetErrorString,
    .ncclGetUniqueId = GetUniqueId,
    .ncclCommInitRank = CommInitRank,
    .ncclCommDestroy = CommDestroy,
    .ncclGroupStart = GroupStart,
    .ncclGroupEnd = GroupEnd,
    .ncclReduce = Reduce,
    .ncclBroadcast = Broadcast,
    .ncclReduceScatter = ReduceScatter,
    .ncclAllGather = AllGather,
};

}  // namespace byteprophet
