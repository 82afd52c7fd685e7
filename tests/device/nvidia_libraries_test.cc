// NVIDIA's own libraries, as torch's CUDA builds have them, on a machine with or without a GPU.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "device_choice.h"

namespace byteprophet {
namespace {

class NvidiaLibrariesTest : public testing::TestWithParam<const char*> {};

TEST_P(NvidiaLibrariesTest, HaveEveryCall) {
  void* const cuda = dlopen(GetParam(), RTLD_LAZY | RTLD_LOCAL);
  ASSERT_NE(cuda, nullptr) << dlerror();
  void* const nccl = dlopen(NVIDIA_NCCL, RTLD_LAZY | RTLD_LOCAL);
  ASSERT_NE(nccl, nullptr) << dlerror();
  Circumstances circumstances{"auto", "", FindCalls(cuda, "CUDA", nccl, "NCCL"), true, 1};
  EXPECT_EQ(circumstances.libraries.missing, "");

  // With a driver or without: the real library answers, and that decides.
  int count = 0;
  const cudaError_t error = circumstances.libraries.cuda.cudaGetDeviceCount(&count);
  const Device device = ChooseDevice(circumstances);
  EXPECT_EQ(device.is_cuda, error == cudaSuccess && count >= 1) << device.why;
  if (error != cudaSuccess) {
    EXPECT_EQ(device.why, std::string("CUDA finds no GPU: ") +
                              circumstances.libraries.cuda.cudaGetErrorString(error));
  }
}

INSTANTIATE_TEST_SUITE_P(Releases, NvidiaLibrariesTest,
                         testing::Values(NVIDIA_CUDART_12, NVIDIA_CUDART_13));

}  // namespace
}  // namespace byteprophet
