// Which device is chosen, and what is said of it. CUDA's libraries stand here as functions that
// count GPUs.
#include "device_choice.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>

#include "host_calls.h"

namespace byteprophet {
namespace {

Circumstances WithGpus(cudaError_t (*count)(int*), const std::string& wanted, int local_ranks = 1) {
  Circumstances circumstances;
  circumstances.wanted = wanted;
  circumstances.wanted_how = "BYTEPROPHET_DEVICE=" + wanted + " is set";
  circumstances.libraries.cuda = kHostCuda;
  circumstances.libraries.cuda.cudaGetDeviceCount = count;
  circumstances.libraries.cuda.cudaGetErrorString = [](cudaError_t) { return "of CUDA's own"; };
  circumstances.libraries.nccl = kHostNccl;
  circumstances.has_driver = true;
  circumstances.local_ranks = local_ranks;
  return circumstances;
}

cudaError_t Two(int* count) {
  *count = 2;
  return cudaSuccess;
}
cudaError_t Fails(int*) { return static_cast<cudaError_t>(100); }
cudaError_t MustNotBeAsked(int*) { throw std::logic_error("CUDA was called"); }

std::string Refusal(const Circumstances& circumstances) {
  try {
    ChooseDevice(circumstances);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(DeviceChoiceTest, CudaWhereEachLocalRankHasAGpu) {
  for (const std::string wanted : {"auto", "cuda"}) {
    const Device device = ChooseDevice(WithGpus(Two, wanted, 2));
    EXPECT_TRUE(device.is_cuda);
    EXPECT_EQ(device.cuda.cudaGetDeviceCount, Two);
    EXPECT_EQ(device.why, "CUDA shows 2 GPU(s)");
  }
}

TEST(DeviceChoiceTest, HostWhereCudaCannotBeHad) {
  Circumstances cpu_torch = WithGpus(MustNotBeAsked, "auto");
  cpu_torch.libraries = {};
  cpu_torch.libraries.missing = "there is no CUDA";
  Circumstances login_node = WithGpus(MustNotBeAsked, "auto");
  login_node.has_driver = false;
  const std::pair<Circumstances, std::string> cases[] = {
      {cpu_torch, "there is no CUDA"},
      {login_node, "this machine has no NVIDIA driver (libcuda.so.1)"},
      {WithGpus(Fails, "auto"), "CUDA finds no GPU: of CUDA's own"},
      {WithGpus(Two, "auto", 3), "CUDA shows 2 GPU(s) for 3 local rank(s)"},
  };
  for (const auto& [circumstances, why] : cases) {
    const Device device = ChooseDevice(circumstances);
    EXPECT_FALSE(device.is_cuda);
    EXPECT_EQ(device.cuda.cudaMemcpy, kHostCuda.cudaMemcpy);
    EXPECT_EQ(device.nccl.ncclReduce, kHostNccl.ncclReduce);
    EXPECT_EQ(device.why, why);

    Circumstances insisting = circumstances;
    insisting.wanted = "cuda";
    insisting.wanted_how = "BYTEPROPHET_DEVICE=cuda is set";
    EXPECT_EQ(Refusal(insisting), "BYTEPROPHET_DEVICE=cuda is set, but " + why +
                                      "; set BYTEPROPHET_DEVICE=host to train without a GPU");
  }
}

TEST(DeviceChoiceTest, HostWhereItIsWanted) {
  const Device device = ChooseDevice(WithGpus(MustNotBeAsked, "host"));
  EXPECT_FALSE(device.is_cuda);
  EXPECT_EQ(device.why, "BYTEPROPHET_DEVICE=host is set");
}

TEST(DeviceChoiceTest, NothingElseCanBeWanted) {
  EXPECT_EQ(Refusal(WithGpus(MustNotBeAsked, "gpu")),
            "BYTEPROPHET_DEVICE=gpu is set: auto, cuda or host is expected");
}

TEST(DeviceChoiceTest, AProcessWithoutTorchUsesTheHost) {
  unsetenv("BYTEPROPHET_DEVICE");
  EXPECT_FALSE(ChooseDevice().is_cuda);
  EXPECT_EQ(ChooseDevice().why, "there is no CUDA build of torch in this process");
}

TEST(CudaLibrariesTest, SaysWhatIsMissing) {
  EXPECT_EQ(FindCalls(nullptr, "a", nullptr, "b").missing, "cudaGetErrorString is not in a");
}

}  // namespace
}  // namespace byteprophet
