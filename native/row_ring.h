// The latest rows of a recorder, until somebody takes them: bounded, and the oldest is lost and
// counted when it is full, so that readers that fall behind get what is recent.
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace byteprophet {

template <typename Row>
class RowRing {
 public:
  // Room for `rows`, more than 0: before the first Add(); again only for as many, which changes
  // nothing, as recorders do whenever they are switched on.
  void MakeRoom(size_t rows) { ring_.resize(rows); }

  void Add(const Row& row) {
    if (count_ == ring_.size()) {
      first_ = (first_ + 1) % ring_.size();
      --count_;
      ++lost_;
    }
    ring_[(first_ + count_++) % ring_.size()] = row;
  }

  // Copies up to `capacity` rows to `out`, in the order in which they were added, each once.
  int Take(Row* out, int capacity) {
    const size_t taken = std::min(count_, static_cast<size_t>(std::max(0, capacity)));
    for (size_t i = 0; i < taken; ++i) out[i] = ring_[(first_ + i) % ring_.size()];
    if (taken > 0) first_ = (first_ + taken) % ring_.size();
    count_ -= taken;
    return static_cast<int>(taken);
  }

  void CountLost() { ++lost_; }
  uint64_t lost() const { return lost_; }

 private:
  std::vector<Row> ring_;
  size_t first_ = 0, count_ = 0;
  uint64_t lost_ = 0;
};

}  // namespace byteprophet
