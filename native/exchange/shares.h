// Who owns what: of each tensor's n elements, rank r owns [B(r) n / B(P), B(r+1) n / B(P)), rounded
// down, where B(r) is the sum of the weights of the ranks before r. Equal weights give [r n / P,
// (r+1) n / P). A rank of weight 0 owns nothing: it sends its part of every sum, and receives every
// result. A rank's share of an operation are its pieces of all tensors, one after another; it is
// sent from, or received into, their own memory.
//
// An element is summed by its owner, over the ranks in their order. So sums do not depend on the
// weights, not even in their last bit.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "exchange/dtype.h"
#include "exchange/frame.h"

namespace byteprophet::exchange {

// Dense memory that somebody else keeps alive.
struct Tensor {
  std::byte* data;
  uint64_t elements;
};

struct Piece {
  std::byte* data;
  size_t size_bytes;  // not 0
};

struct Share {
  std::vector<Piece> pieces;
  uint64_t size_bytes = 0;
};

constexpr uint64_t kMostWeight = uint64_t{1} << 30;  // of all ranks together

// What part of each tensor a rank owns.
class Owners {
 public:
  // One weight for each rank. Throws std::invalid_argument if they are all 0, or too large.
  explicit Owners(std::span<const uint64_t> weights);
  static Owners Equal(int ranks);

  size_t ranks() const { return before_.size() - 1; }
  // The first of `elements` elements that `rank`, or one after it, owns.
  uint64_t Begins(int rank, uint64_t elements) const;

 private:
  std::vector<uint64_t> before_;  // B(0) = 0 to B(P)
};

Share ShareOf(std::span<const Tensor> tensors, size_t element_bytes, int rank,
              const Owners& owners);

// A place in a share. The share outlives it.
class Cursor {
 public:
  Cursor() = default;
  explicit Cursor(const Share& share) : pieces_(share.pieces) {}

  // Writes up to `room` pieces of up to `most_bytes` from here on to `out`. Returns how many, and
  // how many bytes they have; less than `most_bytes` only where room or share ends.
  std::pair<size_t, size_t> Look(uint64_t most_bytes, iovec* out, size_t room) const;

  // Not beyond the end.
  void Advance(size_t bytes);

  // Copies bytes from or to the share, and advances.
  void Read(std::byte* to, size_t bytes);
  void Write(const std::byte* from, size_t bytes);

 private:
  template <typename Copy>
  void Walk(size_t bytes, const Copy& copy);

  std::span<const Piece> pieces_;
  size_t done_ = 0;  // bytes of the first of them
};

// One exchange, the same for both threads, which only look at it.
//
// A gather of the same tensors may follow from a reduce on each rank, as soon as that rank has its
// sum, even while it still sends its parts of the others' sums: what a rank gathers replaces parts
// that it has sent, because their owner had to have them all first.
struct Operation {
  uint64_t number;
  uint64_t over;  // the number of what ends with it: the last one that follows, or its own
  Kind kind;      // kReduce or kGather
  Dtype dtype;
  bool average;
  int64_t position;
  int rank;                               // this one
  uint64_t whole_bytes;                   // of all shares
  std::vector<Share> shares;              // of each rank, in this rank's memory
  bool tells_sum = false;                 // whether the caller is told when the sum is here
  std::shared_ptr<const Operation> then;  // a gather; null: nothing follows

  const Share& own() const { return shares[static_cast<size_t>(rank)]; }
  // What is sent to `other`, and what comes from it.
  const Share& To(int other) const { return kind == Kind::kReduce ? Of(other) : own(); }
  const Share& From(int other) const { return kind == Kind::kReduce ? own() : Of(other); }

 private:
  const Share& Of(int other) const { return shares[static_cast<size_t>(other)]; }
};

// "400 bytes of a float32 reduce-scatter"
std::string Describe(Kind kind, Dtype dtype, uint64_t size_bytes);

}  // namespace byteprophet::exchange
