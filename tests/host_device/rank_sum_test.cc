// Sums over ranks, against definitions; tests/exchange/sums_test.cc has those of all types.
#include "rank_sum.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace byteprophet {
namespace {

template <typename T>
void ExpectLeftToRight(ElementType type) {
  std::mt19937 random(5);
  constexpr size_t kCount = 2500;
  constexpr int kRanks = 4;
  std::vector<std::vector<T>> inputs(kRanks, std::vector<T>(kCount));
  for (auto& input : inputs) {
    for (T& value : input)
      value = static_cast<T>(static_cast<double>(random()) * (random() % 2 == 0 ? 1e-3 : 1e-9));
  }
  const std::vector<const void*> from = {inputs[0].data(), inputs[1].data(), inputs[2].data(),
                                         inputs[3].data()};
  std::vector<T> expected(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    expected[i] = static_cast<T>(((inputs[0][i] + inputs[1][i]) + inputs[2][i]) + inputs[3][i]);
  }
  // In place at any rank gives the same.
  for (int own = 0; own < kRanks; ++own) {
    auto& mine = inputs[static_cast<size_t>(own)];
    const std::vector<T> before = mine;
    SumOverRanks(mine.data(), from.data(), kRanks, kCount, type);
    ASSERT_EQ(std::memcmp(mine.data(), expected.data(), kCount * sizeof(T)), 0) << own;
    mine = before;
  }
}

TEST(RankSumTest, AddsFromLeftToRight) {
  ExpectLeftToRight<float>(ElementType::kFloat32);
  ExpectLeftToRight<double>(ElementType::kFloat64);
  ExpectLeftToRight<uint8_t>(ElementType::kInt8);
  ExpectLeftToRight<uint32_t>(ElementType::kInt32);
  ExpectLeftToRight<uint64_t>(ElementType::kInt64);
}

TEST(RankSumTest, SignedIntegersWrapAround) {
  const int32_t a = std::numeric_limits<int32_t>::max();
  const int32_t b = -5;
  const int32_t c = 7;
  int32_t sum = 0;
  const void* from[] = {&a, &c, &b};
  SumOverRanks(&sum, from, 3, 1, ElementType::kInt32);
  EXPECT_EQ(sum, std::numeric_limits<int32_t>::min() + 1);
}

TEST(RankSumTest, HalvesAreRoundedOnce) {
  // Rounded after each addition, 2048 + 1 + 1 stays 2048.
  const uint16_t large = 0x6800;
  const uint16_t one = 0x3c00;
  uint16_t sum = 0;
  const void* from[] = {&large, &one, &one};
  SumOverRanks(&sum, from, 3, 1, ElementType::kFloat16);
  EXPECT_EQ(sum, 0x6801);  // 2050
}

}  // namespace
}  // namespace byteprophet
