// Sums and half precision, against definitions.
#include "rank_sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace byteprophet {
namespace {

// The value of a half by the definition of the format.
double Value(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int fraction = half & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return half & 0x8000 ? -magnitude : magnitude;
}

TEST(HalfTest, EveryHalfSurvives) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = HalfToFloat(half);
    if ((half & 0x7c00) != 0x7c00) {
      ASSERT_EQ(value, Value(half)) << bits;
    } else {
      ASSERT_EQ(std::isnan(value), (half & 1023) != 0) << bits;
      ASSERT_TRUE(std::isnan(value) || std::isinf(value)) << bits;
    }
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(HalfToFloat(FloatToHalf(value))));
    } else {
      ASSERT_EQ(FloatToHalf(value), half) << bits;
    }
  }
}

TEST(HalfTest, RoundsToTheNearestAndTiesToEven) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const auto low = static_cast<uint16_t>(bits);
    const auto high = static_cast<uint16_t>(bits + 1);
    const auto middle = static_cast<float>((Value(low) + Value(high)) / 2);
    ASSERT_EQ(FloatToHalf(middle), bits % 2 == 0 ? low : high) << bits;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 0.0F)), low) << bits;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 1e9F)), high) << bits;
    ASSERT_EQ(FloatToHalf(-middle), FloatToHalf(middle) | 0x8000) << bits;
  }
  EXPECT_EQ(FloatToHalf(65519.996F), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0F), 0x7c00);
  EXPECT_EQ(FloatToHalf(std::numeric_limits<float>::infinity()), 0x7c00);
  EXPECT_EQ(FloatToHalf(std::numeric_limits<float>::denorm_min()), 0);
}

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
  const uint16_t large = FloatToHalf(2048);
  const uint16_t one = FloatToHalf(1);
  uint16_t sum = 0;
  const void* from[] = {&large, &one, &one};
  SumOverRanks(&sum, from, 3, 1, ElementType::kFloat16);
  EXPECT_EQ(HalfToFloat(sum), 2050);
}

}  // namespace
}  // namespace byteprophet
