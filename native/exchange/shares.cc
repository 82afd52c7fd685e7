#include "exchange/shares.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace byteprophet::exchange {

Owners::Owners(std::span<const uint64_t> weights) : before_{0} {
  for (const uint64_t weight : weights) {
    if (weight > kMostWeight - before_.back())
      throw std::invalid_argument("mesh: the owners' weights add up to more than 2^30");
    before_.push_back(before_.back() + weight);
  }
  if (before_.back() == 0) throw std::invalid_argument("mesh: the owners' weights are all 0");
}

Owners Owners::Equal(int ranks) {
  return Owners(std::vector<uint64_t>(static_cast<size_t>(ranks), 1));
}

uint64_t Owners::Begins(int rank, uint64_t elements) const {
  // B n / all without the product, which may not fit.
  const uint64_t before = before_[static_cast<size_t>(rank)], all = before_.back();
  return before * (elements / all) + before * (elements % all) / all;
}

Share ShareOf(std::span<const Tensor> tensors, size_t element_bytes, int rank,
              const Owners& owners) {
  Share share;
  for (const Tensor& tensor : tensors) {
    const uint64_t first = owners.Begins(rank, tensor.elements);
    const uint64_t end = owners.Begins(rank + 1, tensor.elements);
    if (first == end) continue;
    share.pieces.push_back({tensor.data + first * element_bytes, (end - first) * element_bytes});
    share.size_bytes += share.pieces.back().size_bytes;
  }
  return share;
}

std::pair<size_t, size_t> Cursor::Look(uint64_t most_bytes, iovec* out, size_t room) const {
  size_t count = 0, bytes = 0, skip = done_;
  for (const Piece& piece : pieces_) {
    if (count == room || bytes == most_bytes) break;
    const size_t size = std::min<uint64_t>(piece.size_bytes - skip, most_bytes - bytes);
    out[count++] = {piece.data + skip, size};
    bytes += size;
    skip = 0;
  }
  return {count, bytes};
}

template <typename Copy>
void Cursor::Walk(size_t bytes, const Copy& copy) {
  while (bytes > 0) {
    const Piece& piece = pieces_.front();
    const size_t size = std::min(bytes, piece.size_bytes - done_);
    copy(piece.data + done_, size);
    bytes -= size;
    done_ += size;
    if (done_ == piece.size_bytes) {
      pieces_ = pieces_.subspan(1);
      done_ = 0;
    }
  }
}

void Cursor::Advance(size_t bytes) {
  Walk(bytes, [](std::byte*, size_t) {});
}

void Cursor::Read(std::byte* to, size_t bytes) {
  Walk(bytes, [&](const std::byte* piece, size_t size) {
    std::memcpy(to, piece, size);
    to += size;
  });
}

void Cursor::Write(const std::byte* from, size_t bytes) {
  Walk(bytes, [&](std::byte* piece, size_t size) {
    std::memcpy(piece, from, size);
    from += size;
  });
}

std::string Describe(Kind kind, Dtype dtype, uint64_t size_bytes) {
  return std::to_string(size_bytes) + " bytes of a " + std::string(FactsOf(dtype).name) +
         (kind == Kind::kReduce ? " reduce-scatter" : " all-gather");
}

}  // namespace byteprophet::exchange
