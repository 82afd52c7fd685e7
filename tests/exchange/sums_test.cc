// Sums against a slow reference, the 16-bit types against their definition.
#include "exchange/sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace byteprophet::exchange {
namespace {

template <typename T>
std::vector<T> SumOf(Dtype dtype, const std::vector<std::vector<T>>& parts, bool average) {
  std::vector<const std::byte*> addresses;
  for (const auto& part : parts)
    addresses.push_back(reinterpret_cast<const std::byte*>(part.data()));
  std::vector<T> sum = parts[0];
  addresses[0] = reinterpret_cast<const std::byte*>(sum.data());  // in place
  Sum(dtype, addresses, sum.size(), average, reinterpret_cast<std::byte*>(sum.data()));
  return sum;
}

// A 16-bit float by its definition: sign, `exponent_bits`, and the rest of 15 is its fraction.
double ValueOf(uint16_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

// The nearest of all 16-bit floats, the even one of two: by looking at the neighbours of a guess.
uint16_t NearestTo(double value, int exponent_bits) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const uint16_t infinity =
      static_cast<uint16_t>(((1 << exponent_bits) - 1) << (15 - exponent_bits));
  uint16_t low = 0, high = infinity;  // magnitudes grow with their bits
  const double magnitude = std::abs(value);
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (ValueOf(middle, exponent_bits) <= magnitude ? low : high) = middle;
  }
  // Beyond the largest one, the next as if exponents went on.
  const double above = high == infinity ? 2 * ValueOf(low, exponent_bits) -
                                              ValueOf(static_cast<uint16_t>(low - 1), exponent_bits)
                                        : ValueOf(high, exponent_bits);
  const double to_low = magnitude - ValueOf(low, exponent_bits), to_high = above - magnitude;
  const bool up = to_high < to_low || (to_high == to_low && low % 2 == 1);
  return static_cast<uint16_t>(sign | (up ? high : low));
}

struct Small {
  Dtype dtype;
  int exponent_bits;
};

class SmallFloats : public testing::TestWithParam<Small> {};
INSTANTIATE_TEST_SUITE_P(, SmallFloats,
                         testing::Values(Small{Dtype::kFloat16, 5}, Small{Dtype::kBfloat16, 8}));

TEST_P(SmallFloats, EveryValueIsKept) {
  const auto [dtype, exponent_bits] = GetParam();
  std::vector<uint16_t> all(65536);
  std::iota(all.begin(), all.end(), uint16_t{0});
  const auto sum = SumOf<uint16_t>(dtype, {all}, false);
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::isnan(ValueOf(all[i], exponent_bits))) {
      EXPECT_TRUE(std::isnan(ValueOf(sum[i], exponent_bits))) << i;
    } else {
      EXPECT_EQ(sum[i], all[i]);
    }
  }
}

TEST_P(SmallFloats, SumsAreRoundedOnceToNearestEven) {
  const auto [dtype, exponent_bits] = GetParam();
  std::mt19937 random(1);
  std::vector<uint16_t> one(300'000), other(one.size());
  for (size_t i = 0; i < one.size(); ++i) {
    one[i] = static_cast<uint16_t>(random());
    // Of about the same size, so that bits are lost, and at times exactly half of a place.
    other[i] = static_cast<uint16_t>(i % 3 == 0 ? random() : one[i] + random() % 2048);
  }
  const auto sum = SumOf<uint16_t>(dtype, {one, other}, false);
  const auto average = SumOf<uint16_t>(dtype, {one, other}, true);
  for (size_t i = 0; i < one.size(); ++i) {
    // As floats, as the sum of two may need more places than even those have.
    const float exact = static_cast<float>(ValueOf(one[i], exponent_bits)) +
                        static_cast<float>(ValueOf(other[i], exponent_bits));
    if (std::isnan(exact)) {
      EXPECT_TRUE(std::isnan(ValueOf(sum[i], exponent_bits)));
      continue;
    }
    EXPECT_EQ(sum[i], NearestTo(exact, exponent_bits)) << one[i] << " + " << other[i];
    EXPECT_EQ(average[i], NearestTo(exact * 0.5f, exponent_bits)) << one[i] << " + " << other[i];
  }
}

template <typename T>
void ExpectSumsInRankOrder(Dtype dtype) {
  std::mt19937 random(2);
  for (const size_t elements : {size_t{1}, size_t{1023}, size_t{5000}}) {
    std::vector<std::vector<T>> parts(5, std::vector<T>(elements));
    for (auto& part : parts)
      for (T& value : part) value = static_cast<T>(std::normal_distribution<>(0, 100)(random));
    const auto sum = SumOf<T>(dtype, parts, false);
    const auto average = SumOf<T>(dtype, parts, true);
    for (size_t i = 0; i < elements; ++i) {
      T expected = parts[0][i];
      for (size_t r = 1; r < parts.size(); ++r) expected += parts[r][i];
      EXPECT_EQ(sum[i], expected);
      EXPECT_EQ(average[i], expected * static_cast<T>(1.0 / 5));
    }
  }
}

TEST(Sums, FloatsInRankOrder) { ExpectSumsInRankOrder<float>(Dtype::kFloat32); }
TEST(Sums, DoublesInRankOrder) { ExpectSumsInRankOrder<double>(Dtype::kFloat64); }

template <typename T>
void ExpectComplexSumsByParts(Dtype dtype) {
  using Complex = std::complex<T>;
  const auto sum = SumOf<Complex>(dtype, {{{1, 2}, {3, -4}}, {{5, 6}, {-7, 8}}}, false);
  EXPECT_EQ(sum, (std::vector<Complex>{{6, 8}, {-4, 4}}));
  const auto average = SumOf<Complex>(dtype, {{{1, 2}, {3, -4}}, {{5, 6}, {-7, 8}}}, true);
  EXPECT_EQ(average, (std::vector<Complex>{{3, 4}, {-2, 2}}));
}

TEST(Sums, ComplexNumbersByParts) {
  ExpectComplexSumsByParts<float>(Dtype::kComplex64);
  ExpectComplexSumsByParts<double>(Dtype::kComplex128);
}

template <typename T>
void ExpectWrappedSums(Dtype dtype) {
  const T high = std::numeric_limits<T>::max(), low = std::numeric_limits<T>::min();
  const auto sum = SumOf<T>(dtype, {{1, high, low, 100}, {2, 1, low, 27}}, false);
  EXPECT_EQ(sum, (std::vector<T>{3, low, static_cast<T>(low == 0 ? low : 0), 127}));
}

TEST(Sums, IntegersWrapAround) {
  ExpectWrappedSums<int64_t>(Dtype::kInt64);
  ExpectWrappedSums<int32_t>(Dtype::kInt32);
  ExpectWrappedSums<int16_t>(Dtype::kInt16);
  ExpectWrappedSums<int8_t>(Dtype::kInt8);
  ExpectWrappedSums<uint8_t>(Dtype::kUint8);
}

TEST(Sums, OfBoolsIsWhetherAnyIsTrue) {
  EXPECT_EQ(SumOf<uint8_t>(Dtype::kBool, {{0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1}}, false),
            (std::vector<uint8_t>{0, 1, 1, 1}));
}

}  // namespace
}  // namespace byteprophet::exchange
