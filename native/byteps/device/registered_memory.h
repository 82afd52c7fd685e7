// Host memory that a GPU can reach, for as long as somebody uses it.
//
// CUDA registers whole pages, which small tensors share. So pages are counted: they are registered
// when the first user comes, in one piece with their neighbours, and unregistered when the last
// user of that piece has left. Thread safe; the functions given are called with the lock held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

namespace byteprophet {

class RegisteredMemory {
 public:
  // `add` registers pages; false: they are registered already, by somebody else, who also
  // unregisters them. `remove` unregisters what `add` has registered from the same address on.
  RegisteredMemory(std::function<bool(void*, size_t)> add, std::function<void(void*)> remove);

  // With CUDA's calls on the device that this process uses; never destroyed.
  static RegisteredMemory& OfProcess();

  // REQUIRES: `size_bytes` is not 0. Each Begin has one End of the same memory.
  void Begin(const void* data, size_t size_bytes);
  void End(const void* data, size_t size_bytes);

 private:
  struct Piece {
    uintptr_t end;
    size_t users;
    bool ours;
  };
  using Pieces = std::map<uintptr_t, Piece>;  // by their begin; none overlap

  // The first that ends behind `address`. REQUIRES: mutex_ is held.
  Pieces::iterator FirstBehind(uintptr_t address);

  const std::function<bool(void*, size_t)> add_;
  const std::function<void(void*)> remove_;
  std::mutex mutex_;
  Pieces pieces_;
};

}  // namespace byteprophet
