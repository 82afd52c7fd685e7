#include "native/byteps/van/buffers.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace byteprophet::van {
namespace {

TEST(Buffers, AreUsedAgainForSizesThatFit) {
  Buffers buffers;
  const auto first = buffers.Take(1 << 20).get();
  EXPECT_EQ(buffers.free_bytes(), size_t{1} << 20);
  const auto second = buffers.Take((1 << 20) - 1000);
  EXPECT_EQ(second.get(), first);
  EXPECT_EQ(buffers.free_bytes(), 0u);
}

TEST(Buffers, HoldWhatWasAskedForAtAnAlignedAddress) {
  Buffers buffers;
  for (size_t size = 1; size < (3 << 20); size += 1 + size / 3) {
    const auto buffer = buffers.Take(size);
    std::memset(buffer.get(), 0x5a, size);  // AddressSanitizer looks
    if (size >= Buffers::kSmallestKept) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.get()) % 64, 0u) << size;
    }
  }
}

TEST(Buffers, WasteAQuarterAtMost) {
  Buffers buffers;
  for (size_t size = Buffers::kSmallestKept; size < (8 << 20); size += 12345) {
    const size_t before = buffers.free_bytes();
    {
      const auto held = buffers.Take(size);
      EXPECT_LE(buffers.free_bytes(), before);
    }
    EXPECT_LE(buffers.free_bytes(), before + size + size / 4 + 64);
  }
}

TEST(Buffers, KeepNoMoreThanTheirLimit) {
  Buffers buffers;
  constexpr size_t kSize = 32 << 20;
  std::vector<std::shared_ptr<char>> held;
  for (size_t taken = 0; taken <= Buffers::kMostFreeBytes; taken += kSize)
    held.push_back(buffers.Take(kSize));
  held.clear();
  EXPECT_EQ(buffers.free_bytes(), Buffers::kMostFreeBytes);
}

}  // namespace
}  // namespace byteprophet::van
