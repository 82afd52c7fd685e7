// What travels between two ranks: frames, each a header and `length` bytes.
//
//   reduce, gather   bytes [offset, offset + length) of the `total` that the sender has for the
//                    receiver in this operation, of `whole` for all ranks; an operation's frames
//                    come in order
//   abort            the sender gives the operation up; the bytes are text that says why
//   goodbye          nothing follows
//
// Ranks are machines of one kind: numbers are little endian, as in memory.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "exchange/dtype.h"

namespace byteprophet::exchange {

static_assert(std::endian::native == std::endian::little);

enum class Kind : uint8_t { kReduce = 1, kGather, kAbort, kGoodbye };

struct Header {
  uint32_t magic;
  Kind kind;
  Dtype dtype;
  uint8_t more;  // whether the sender had more for the receiver when it began this frame
  uint8_t zero;
  uint64_t operation;
  uint64_t whole_bytes;
  uint64_t total_bytes;
  uint64_t offset_bytes;
  uint64_t length_bytes;
};
static_assert(sizeof(Header) == 48);

constexpr size_t kHeaderBytes = sizeof(Header);
using HeaderBytes = std::array<std::byte, kHeaderBytes>;

constexpr uint32_t kMagic = 0x324d5042;  // "BPM2"
constexpr uint64_t kMostFrameBytes = uint64_t{1} << 26;
constexpr uint64_t kMostTotalBytes = uint64_t{1} << 40;
constexpr uint64_t kMostTextBytes = 1000;

inline HeaderBytes Pack(Header header) {
  header.magic = kMagic;
  return std::bit_cast<HeaderBytes>(header);
}

// Nothing for what no rank sends.
inline std::optional<Header> Unpack(const HeaderBytes& bytes) {
  uint32_t magic;
  uint8_t kind, dtype;
  std::memcpy(&magic, bytes.data(), 4);
  std::memcpy(&kind, bytes.data() + offsetof(Header, kind), 1);
  std::memcpy(&dtype, bytes.data() + offsetof(Header, dtype), 1);
  if (magic != kMagic || kind < 1 || kind > 4 || dtype >= kDtypes.size()) return std::nullopt;
  const Header header = std::bit_cast<Header>(bytes);
  const uint64_t length = header.length_bytes, total = header.total_bytes;
  switch (header.kind) {
    case Kind::kReduce:
    case Kind::kGather:
      if (length < 1 || length > kMostFrameBytes || total > kMostTotalBytes || length > total ||
          total > header.whole_bytes || header.offset_bytes > total - length)
        return std::nullopt;
      break;
    case Kind::kAbort:
      if (length < 1 || length > kMostTextBytes) return std::nullopt;
      break;
    case Kind::kGoodbye:
      if (length != 0) return std::nullopt;
  }
  return header;
}

}  // namespace byteprophet::exchange
