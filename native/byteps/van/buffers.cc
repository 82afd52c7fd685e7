#include "buffers.h"

#include <bit>
#include <cstdlib>
#include <new>

namespace byteprophet::van {
namespace {

constexpr size_t kAlignment = 64;

size_t RoundUp(size_t size_bytes) {
  const size_t step = std::bit_floor(size_bytes) / 4;
  return (size_bytes + step - 1) / step * step;
}

}  // namespace

Buffers& Buffers::OfProcess() {
  static auto* const buffers = new Buffers;
  return *buffers;
}

Buffers::~Buffers() {
  for (auto& [size_bytes, buffers] : free_) {
    for (char* const buffer : buffers) std::free(buffer);
  }
}

std::shared_ptr<char> Buffers::Take(size_t size_bytes) {
  if (size_bytes < kSmallestKept)
    return std::shared_ptr<char>(new char[size_bytes], std::default_delete<char[]>());
  const size_t rounded_bytes = RoundUp(size_bytes);
  char* buffer = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<char*>& fitting = free_[rounded_bytes];
    if (!fitting.empty()) {
      buffer = fitting.back();
      fitting.pop_back();
      free_bytes_ -= rounded_bytes;
    }
  }
  if (buffer == nullptr) buffer = static_cast<char*>(std::aligned_alloc(kAlignment, rounded_bytes));
  if (buffer == nullptr) throw std::bad_alloc();
  return std::shared_ptr<char>(buffer,
                               [this, rounded_bytes](char* used) { Release(used, rounded_bytes); });
}

size_t Buffers::free_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return free_bytes_;
}

void Buffers::Release(char* buffer, size_t size_bytes) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_bytes_ + size_bytes <= kMostFreeBytes) {
      free_[size_bytes].push_back(buffer);
      free_bytes_ += size_bytes;
      return;
    }
  }
  std::free(buffer);
}

}  // namespace byteprophet::van
