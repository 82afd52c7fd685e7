// The partition size of one tensor, which may change between two of its operations; BytePS has one
// for all tensors, for good. What patch 0034 calls in workers.
//
// Whoever changes it does so on every rank between the same two push_pulls of the tensor: on the
// server, all pushes of a round have one length. Nothing else has to be waited for. An operation
// has the size that was wanted when push_pull was called, although the first one of a tensor is
// prepared in a thread of its own.
//
// Threads: Want() by the one that changes sizes, Begin() by the one that calls push_pull. The rest
// by the one that prepares the operation, before its partitions are queued; whoever takes them from
// there may call changed().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <vector>

namespace byteprophet {

class Partitioning {
 public:
  // `bound`: bytes, a multiple of the page size times the number of local ranks.
  void Want(size_t bound) { wanted_ = bound; }

  void Begin() { next_ = wanted_; }

  // For the first operation, whose keys are made by BytePS. `bound` is the size at start.
  uint32_t Start(uint32_t bound, size_t size) {
    bound_ = next_ > 0 ? next_ : bound;
    CheckKeys(size);
    return static_cast<uint32_t>(bound_);
  }

  // For all operations: makes `keys` anew if the size has changed.
  void Apply(std::vector<uint64_t>* keys, uint64_t declared_key, size_t size) {
    if (next_ == 0 || next_ == bound_) return;
    bound_ = next_;
    changed_ = true;
    CheckKeys(size);
    keys->clear();
    for (size_t offset = 0; offset < size; offset += bound_)
      keys->push_back((declared_key << 16) + keys->size());
  }

  size_t bound() const { return bound_; }
  // Whether the server must be told that lengths of known keys differ from those of their first
  // push, and that keys may be new.
  bool changed() const { return changed_; }

 private:
  // Keys are numbered from declared_key << 16: more of them would be those of the next tensor.
  void CheckKeys(size_t size) const {
    constexpr size_t kMaxKeys = size_t{1} << 16;
    if (size <= kMaxKeys * bound_) return;
    std::cerr << "byteprophet: error: a tensor of " << size << " bytes has more than " << kMaxKeys
              << " partitions of " << bound_ << " bytes: larger partitions are needed" << std::endl;
    std::_Exit(1);
  }

  std::atomic<size_t> wanted_{0};
  size_t next_ = 0;
  size_t bound_ = 0;
  bool changed_ = false;
};

}  // namespace byteprophet
