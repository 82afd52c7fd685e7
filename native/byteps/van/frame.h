// A message as it travels over a data link: a head, the keys and lengths, and the values.
//
//   head (72 bytes) | keys | lengths | values
//
// Both ends are of one build on machines of one byte order, as in ps-lite's own messages. What a
// head says is checked before anything is done with it (IsValid).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>

namespace byteprophet::van {

constexpr uint32_t kFrameMark = 0x62706474;  // "bpdt"
constexpr size_t kMostParts = 3;             // keys, values, lengths
constexpr size_t kMostSmallBytes = 64;       // of keys and lengths; BytePS has 12

// The fields of ps::Meta that a message of gradients uses.
struct Head {
  uint32_t mark = kFrameMark;
  int32_t command = 0;  // Meta::head
  int32_t application = 0;
  int32_t customer = 0;
  int32_t timestamp = 0;
  int32_t value_length = 0;
  int32_t option = 0;
  uint8_t is_request = 0;
  uint8_t is_push = 0;
  uint8_t parts = 0;  // 0, 2 or 3: lengths may be missing
  uint8_t reserved = 0;
  std::array<int32_t, kMostParts> types{};  // ps::DataType of each part
  uint32_t keys_bytes = 0;
  uint32_t lengths_bytes = 0;
  uint32_t unused = 0;
  uint64_t key = 0;
  uint64_t values_bytes = 0;
};
static_assert(sizeof(Head) == 72);

inline bool IsValid(const Head& head) {
  constexpr int32_t kTypes = 12;  // of ps::DataType
  for (const int32_t type : head.types) {
    if (type < 0 || type >= kTypes) return false;
  }
  const bool has_parts = head.parts == 2 || head.parts == kMostParts;
  const bool is_empty = head.keys_bytes == 0 && head.lengths_bytes == 0 && head.values_bytes == 0;
  return head.mark == kFrameMark && head.is_request <= 1 && head.is_push <= 1 &&
         (has_parts || (head.parts == 0 && is_empty)) && head.keys_bytes <= kMostSmallBytes &&
         head.lengths_bytes <= kMostSmallBytes - head.keys_bytes &&
         head.values_bytes <= static_cast<uint64_t>(std::numeric_limits<int32_t>::max());
}

// What precedes the values, in one piece of memory.
struct Packet {
  Head head;
  std::array<char, kMostSmallBytes> small{};  // keys, then lengths

  size_t size_bytes() const { return sizeof(Head) + head.keys_bytes + head.lengths_bytes; }
};
static_assert(offsetof(Packet, small) == sizeof(Head));

// A message to send. `values` are head.values_bytes at an address that is valid as long as `keep`
// lives, which is released when the kernel has taken them, or when the link is over. `sent` is
// called in the first case only; it may be empty.
struct Outgoing {
  Packet packet;
  const char* values = nullptr;
  std::shared_ptr<const void> keep;
  std::function<void()> sent;

  size_t size_bytes() const { return packet.size_bytes() + packet.head.values_bytes; }
};

}  // namespace byteprophet::van
