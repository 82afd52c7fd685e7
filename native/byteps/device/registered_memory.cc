// See registered_memory.h.
#include "registered_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "cuda_runtime.h"

namespace byteprophet {

namespace {

constexpr uintptr_t kPageBytes = 4096;

struct Pages {
  uintptr_t begin;
  uintptr_t end;
};

Pages PagesOf(const void* data, size_t size_bytes) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return {address / kPageBytes * kPageBytes,
          (address + size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes};
}

}  // namespace

RegisteredMemory::RegisteredMemory(std::function<bool(void*, size_t)> add,
                                   std::function<void(void*)> remove)
    : add_(std::move(add)), remove_(std::move(remove)) {}

RegisteredMemory& RegisteredMemory::OfProcess() {
  static RegisteredMemory& memory = *new RegisteredMemory(
      [](void* data, size_t size_bytes) {
        if (cudaHostRegister(data, size_bytes, cudaHostRegisterMapped) == cudaSuccess) return true;
        cudaGetLastError();  // or torch finds it after its next kernel
        return false;
      },
      [](void* data) { cudaHostUnregister(data); });
  return memory;
}

RegisteredMemory::Pieces::iterator RegisteredMemory::FirstBehind(uintptr_t address) {
  auto piece = pieces_.upper_bound(address);
  if (piece != pieces_.begin() && std::prev(piece)->second.end > address) --piece;
  return piece;
}

void RegisteredMemory::Begin(const void* data, size_t size_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Pages pages = PagesOf(data, size_bytes);
  uintptr_t at = pages.begin;
  for (auto piece = FirstBehind(at); at < pages.end; ++piece) {
    if (piece == pieces_.end() || piece->first > at) {
      const uintptr_t end = piece == pieces_.end() ? pages.end : std::min(pages.end, piece->first);
      const bool ours = add_(reinterpret_cast<void*>(at), end - at);
      piece = pieces_.emplace_hint(piece, at, Piece{end, 0, ours});
    }
    ++piece->second.users;
    at = piece->second.end;
  }
}

void RegisteredMemory::End(const void* data, size_t size_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Pages pages = PagesOf(data, size_bytes);
  for (auto piece = FirstBehind(pages.begin); piece != pieces_.end() && piece->first < pages.end;) {
    if (--piece->second.users > 0) {
      ++piece;
      continue;
    }
    if (piece->second.ours) remove_(reinterpret_cast<void*>(piece->first));
    piece = pieces_.erase(piece);
  }
}

}  // namespace byteprophet
