// See cuda_libraries.h.
#include "cuda_libraries.h"

#include <dlfcn.h>

namespace byteprophet {

namespace {

template <typename Function>
void Find(void* library, const char* library_name, const char* name, Function* function,
          std::string* missing) {
  *function = library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr && missing->empty())
    *missing = std::string(name) + " is not in " + library_name;
}

}  // namespace

CudaLibraries FindCalls(void* cuda, const char* cuda_name, void* nccl, const char* nccl_name) {
  CudaLibraries found{};
#define BYTEPROPHET_FIND(name) Find(cuda, cuda_name, #name, &found.cuda.name, &found.missing);
  BYTEPROPHET_CUDA_CALLS(BYTEPROPHET_FIND)
#undef BYTEPROPHET_FIND
#define BYTEPROPHET_FIND(name) Find(nccl, nccl_name, #name, &found.nccl.name, &found.missing);
  BYTEPROPHET_NCCL_CALLS(BYTEPROPHET_FIND)
#undef BYTEPROPHET_FIND
  return found;
}

// Handles are kept for good: the calls are used until the process ends.
CudaLibraries TorchsLibraries() {
  void* const cuda = dlopen("libc10_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  if (cuda == nullptr) {
    CudaLibraries none{};
    none.missing = "there is no CUDA build of torch in this process";
    return none;
  }
  constexpr const char* kNcclCall = "ncclReduceScatter";
  void* nccl = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  if (nccl == nullptr || dlsym(nccl, kNcclCall) == nullptr)
    nccl = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
  return FindCalls(cuda, "torch's libraries", nccl, "torch's libraries or libnccl.so.2");
}

bool HasDriver() { return dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr; }

}  // namespace byteprophet
