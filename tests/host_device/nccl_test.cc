// NCCL's interface, used as BytePS uses it.
#include "nccl.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "local_group.h"
#include "ranks.h"

namespace byteprophet {
namespace {

void Check(ncclResult_t result) {
  if (result != ncclSuccess) throw LocalGroupError(ncclGetErrorString(result));
}

// A push_pull's collectives on `count` elements: what divides by the ranks is scattered, the rest
// goes to the last rank; then all get everything.
void ReduceAndBroadcast(std::vector<int32_t>& values, int rank, int size, ncclComm_t comm) {
  const size_t block = values.size() / static_cast<size_t>(size);
  const size_t rest = values.size() - block * static_cast<size_t>(size);
  int32_t* const own = values.data() + block * static_cast<size_t>(rank);
  int32_t* const tail = values.data() + values.size() - rest;
  Check(ncclGroupStart());
  if (block > 0)
    Check(ncclReduceScatter(values.data(), own, block, ncclInt32, ncclSum, comm, nullptr));
  if (rest > 0) Check(ncclReduce(tail, tail, rest, ncclInt32, ncclSum, size - 1, comm, nullptr));
  Check(ncclGroupEnd());
  Check(ncclGroupStart());
  if (block > 0) Check(ncclAllGather(own, values.data(), block, ncclInt32, comm, nullptr));
  if (rest > 0) Check(ncclBroadcast(tail, tail, rest, ncclInt32, size - 1, comm, nullptr));
  Check(ncclGroupEnd());
}

TEST(NcclTest, EverySizeOverEveryNumberOfRanks) {
  for (int size = 1; size <= 4; ++size) {
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    const auto outcomes = RunProcesses(size, [&](int rank) {
      ncclComm_t comm = nullptr;
      Check(ncclCommInitRank(&comm, size, id, rank));
      for (size_t count = 1; count < 30; ++count) {
        std::vector<int32_t> values(count);
        std::iota(values.begin(), values.end(), 100 * rank);
        ReduceAndBroadcast(values, rank, size, comm);
        for (size_t i = 0; i < count; ++i) {
          if (values[i] != static_cast<int>(i) * size + 100 * size * (size - 1) / 2)
            throw LocalGroupError("wrong sum");
        }
      }
      Check(ncclCommDestroy(comm));
    });
    EXPECT_EQ(outcomes, std::vector<std::string>(static_cast<size_t>(size)));
  }
}

// BytePS posts what is ready in one group, over several communicators (BYTEPS_NCCL_NUM_RINGS).
TEST(NcclTest, OneGroupOverTwoCommunicators) {
  std::vector<ncclUniqueId> ids(2);
  for (ncclUniqueId& id : ids) ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  const auto outcomes = RunProcesses(2, [&](int rank) {
    std::vector<ncclComm_t> comms(2);
    for (size_t ring = 0; ring < 2; ++ring)
      Check(ncclCommInitRank(&comms[ring], 2, ids[ring], rank));
    std::vector<double> sums(5, 1.0 + rank);
    Check(ncclGroupStart());
    for (size_t i = 0; i < sums.size(); ++i) {
      Check(ncclReduce(&sums[i], &sums[i], 1, ncclFloat64, ncclSum, 0, comms[i % 2], nullptr));
    }
    if (sums[0] != 1.0 + rank) throw LocalGroupError("done before the group ended");
    Check(ncclGroupEnd());
    if (rank == 0 && sums != std::vector<double>(5, 3.0)) throw LocalGroupError("wrong sum");
  });
  EXPECT_EQ(outcomes, std::vector<std::string>(2));
}

TEST(NcclTest, IdsDifferAndBelongToTheJob) {
  ASSERT_EQ(setenv("DMLC_PS_ROOT_PORT", "1234", 1), 0);
  ASSERT_EQ(setenv("DMLC_WORKER_ID", "7", 1), 0);
  ASSERT_EQ(setenv("BYTEPROPHET_SHARED_MEMORY", "89ab", 1), 0);
  ncclUniqueId first;
  ncclUniqueId second;
  ASSERT_EQ(ncclGetUniqueId(&first), ncclSuccess);
  ASSERT_EQ(ncclGetUniqueId(&second), ncclSuccess);
  unsetenv("DMLC_PS_ROOT_PORT");
  unsetenv("DMLC_WORKER_ID");
  unsetenv("BYTEPROPHET_SHARED_MEMORY");
  EXPECT_STRNE(first.internal, second.internal);
  // What the launcher's caretaker looks for.
  EXPECT_EQ(std::string(first.internal).rfind("BytePS_Nccl_1234_7_89ab_", 0), 0U);
}

// Seen to give wrong parameters.
TEST(NcclTest, PartOfTheLocalRanksIsRefused) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ASSERT_EQ(setenv("BYTEPS_LOCAL_SIZE", "4", 1), 0);
  ncclComm_t comm = nullptr;
  const ncclResult_t result = ncclCommInitRank(&comm, 2, id, 0);
  unsetenv("BYTEPS_LOCAL_SIZE");
  EXPECT_EQ(result, ncclInvalidArgument);
  EXPECT_NE(std::string(ncclGetErrorString(result)).find("BYTEPS_PCIE_SWITCH_SIZE"),
            std::string::npos);
}

TEST(NcclTest, WrongUseIsRefusedWithAReason) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument);
  ASSERT_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
  float value = 1;
  const ncclResult_t result = ncclReduce(&value, &value, 1, ncclFloat32, ncclSum, 3, comm, nullptr);
  EXPECT_EQ(result, ncclInvalidArgument);
  EXPECT_NE(std::string(ncclGetErrorString(result)).find("root 3"), std::string::npos);
  EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

}  // namespace
}  // namespace byteprophet
