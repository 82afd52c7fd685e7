#include "exchange/buffers.h"

#include <algorithm>
#include <new>
#include <utility>

namespace byteprophet::exchange {

Buffers::Buffer& Buffers::Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  lender_ = other.lender_;
  memory_ = std::move(other.memory_);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  return *this;
}

void Buffers::Buffer::Reset() {
  if (memory_) lender_->TakeBack(std::move(memory_), std::exchange(size_bytes_, 0));
}

Buffers::Buffer Buffers::Lend(size_t bytes) {
  // The smallest that is large enough, but not one that a much larger part will need.
  auto best = idle_.end();
  for (auto each = idle_.begin(); each != idle_.end(); ++each) {
    const bool fits = each->size_bytes >= bytes && each->size_bytes / 2 <= bytes;
    if (fits && (best == idle_.end() || each->size_bytes < best->size_bytes)) best = each;
  }
  Idle lent;
  if (best != idle_.end()) {
    lent = std::move(*best);
    idle_.erase(best);
    idle_bytes_ -= lent.size_bytes;
  } else {
    lent = {std::unique_ptr<std::byte[]>(new (std::nothrow) std::byte[bytes]), bytes};
    if (!lent.memory) return {};
  }
  lent_bytes_ += lent.size_bytes;
  most_lent_bytes_ = std::max(most_lent_bytes_, lent_bytes_);
  while (lent_bytes_ + idle_bytes_ > most_lent_bytes_) DropOldest();
  return {this, std::move(lent.memory), lent.size_bytes};
}

void Buffers::TakeBack(std::unique_ptr<std::byte[]> memory, size_t size_bytes) {
  lent_bytes_ -= size_bytes;
  idle_bytes_ += size_bytes;
  idle_.push_back({std::move(memory), size_bytes});
}

void Buffers::DropOldest() {
  idle_bytes_ -= idle_.front().size_bytes;
  idle_.erase(idle_.begin());
}

}  // namespace byteprophet::exchange
