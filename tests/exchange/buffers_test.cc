// Memory is used again, and never more is kept than was lent at once.
#include "exchange/buffers.h"

#include <gtest/gtest.h>

namespace byteprophet::exchange {
namespace {

TEST(Buffers, ABufferThatCameBackIsLentAgain) {
  Buffers buffers;
  auto first = buffers.Lend(1000);
  std::byte* const memory = first.data();
  first.Reset();
  EXPECT_FALSE(first);
  const auto smaller = buffers.Lend(800);
  EXPECT_EQ(smaller.data(), memory);
  EXPECT_EQ(smaller.size_bytes(), 1000u);
}

TEST(Buffers, ALargeOneIsNotSpentOnLittle) {
  Buffers buffers;
  auto large = buffers.Lend(10'000);
  std::byte* const memory = large.data();
  auto small = buffers.Lend(100);
  large.Reset();
  small.Reset();
  const auto little = buffers.Lend(90);
  EXPECT_NE(little.data(), memory);
  EXPECT_EQ(buffers.Lend(9'000).data(), memory);
}

TEST(Buffers, NoMoreIsKeptThanWasLentAtOnce) {
  Buffers buffers;
  for (size_t bytes = 1000; bytes < 5000; bytes += 500) {
    auto buffer = buffers.Lend(bytes);  // none that came back is large enough
    EXPECT_LE(buffers.kept_bytes(), bytes);
  }
  auto one = buffers.Lend(4500), other = buffers.Lend(3000);
  one.Reset();
  other.Reset();
  EXPECT_EQ(buffers.kept_bytes(), 7500u);
}

}  // namespace
}  // namespace byteprophet::exchange
