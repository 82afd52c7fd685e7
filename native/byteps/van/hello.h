// How a worker introduces itself on each socket that it connects to a server's port for data. The
// server answers with kWelcome, or closes the socket.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "offer.h"

namespace byteprophet::van {

// Values in both directions, and requests, go over one socket; what is sent without values to a
// worker, that is acknowledgements of pushes, over the other: in front of them may be no more than
// themselves, as a policy's window waits for them.
enum Lane : uint32_t { kValues = 0, kNotices = 1 };
constexpr size_t kLanes = 2;

constexpr uint64_t kHelloMark = 0x316f6c6c65687062;  // "bphello1"
constexpr char kWelcome = '+';

struct Hello {
  uint64_t mark = kHelloMark;
  Word word{};
  int32_t node = 0;  // ps-lite's number of the worker
  uint32_t lane = 0;
};
static_assert(sizeof(Hello) == 48);

// In a time that does not depend on where they differ.
inline bool AreEqual(const Word& one, const Word& other) {
  unsigned char difference = 0;
  for (size_t i = 0; i < kWordBytes; ++i)
    difference = static_cast<unsigned char>(difference | (one[i] ^ other[i]));
  return difference == 0;
}

}  // namespace byteprophet::van
