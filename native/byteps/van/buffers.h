// Memory for values that were received, used again: what the kernel maps anew for each message of
// a megabyte costs as much as the copy into it.
//
// Sizes are rounded up to one of four steps between powers of two, so that a buffer wastes a
// quarter at most, and partitions, which mostly have one size, find each other's. Buffers that were
// used last are used first: they may still be in a cache. No more than kMostFreeBytes are kept.
//
// Any thread may take and release; the mutex is held for a look into a map. Small ones come from
// the heap, which keeps them itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace byteprophet::van {

class Buffers {
 public:
  static constexpr size_t kSmallestKept = 16 << 10;
  static constexpr size_t kMostFreeBytes = size_t{256} << 20;

  // Of this process. Never destroyed: what was received may outlive everything.
  static Buffers& OfProcess();

  Buffers() = default;
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers();

  // `size_bytes` or more, aligned to a cache line. It outlives what it returns.
  std::shared_ptr<char> Take(size_t size_bytes);

  size_t free_bytes() const;

 private:
  void Release(char* buffer, size_t size_bytes);

  mutable std::mutex mutex_;  // guards what follows
  std::map<size_t, std::vector<char*>> free_;
  size_t free_bytes_ = 0;
};

}  // namespace byteprophet::van
