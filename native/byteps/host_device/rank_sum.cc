#include "rank_sum.h"

#include <algorithm>
#include <array>
#include <bit>

namespace byteprophet {
namespace {

// Accumulators stay in the first-level cache, and the compiler knows that nothing aliases them.
constexpr size_t kBlock = 1024;

// Stored: as it lies in memory; Sum: as it is added.
template <typename Stored, typename Sum, Sum (*Load)(Stored), Stored (*Store)(Sum)>
void SumBlocks(void* to, const void* const* from, int ranks, size_t count) {
  std::array<Sum, kBlock> sums;
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t length = std::min(kBlock, count - first);
    const Stored* addend = static_cast<const Stored*>(from[0]) + first;
    for (size_t i = 0; i < length; ++i) sums[i] = Load(addend[i]);
    for (int rank = 1; rank < ranks; ++rank) {
      addend = static_cast<const Stored*>(from[rank]) + first;
      for (size_t i = 0; i < length; ++i) sums[i] = static_cast<Sum>(sums[i] + Load(addend[i]));
    }
    Stored* result = static_cast<Stored*>(to) + first;
    for (size_t i = 0; i < length; ++i) result[i] = Store(sums[i]);
  }
}

template <typename T>
T Same(T value) {
  return value;
}

template <typename T>
void SumPlain(void* to, const void* const* from, int ranks, size_t count) {
  SumBlocks<T, T, Same<T>, Same<T>>(to, from, ranks, count);
}

}  // namespace

size_t SizeBytes(ElementType type) {
  switch (type) {
    case ElementType::kInt8:
      return 1;
    case ElementType::kFloat16:
      return 2;
    case ElementType::kInt32:
    case ElementType::kFloat32:
      return 4;
    case ElementType::kInt64:
    case ElementType::kFloat64:
      return 8;
  }
  return 0;
}

const char* Name(ElementType type) {
  switch (type) {
    case ElementType::kInt8:
      return "int8";
    case ElementType::kInt32:
      return "int32";
    case ElementType::kInt64:
      return "int64";
    case ElementType::kFloat16:
      return "float16";
    case ElementType::kFloat32:
      return "float32";
    case ElementType::kFloat64:
      return "float64";
  }
  return "unknown";
}

float HalfToFloat(uint16_t half) {
  // The exponent is rebiased by a product, which also normalises subnormal numbers.
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fff) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112F;
  const uint32_t special = (half & 0x7c00) == 0x7c00 ? 0x7f800000U : 0U;  // infinity or NaN
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special | sign);
}

uint16_t FloatToHalf(float value) {
  constexpr uint32_t kInfinity = 0x7f800000;
  constexpr uint32_t kTooLarge = 0x47800000;  // 2^16; what rounds up to it is handled by carry
  constexpr uint32_t kSmallestNormal = 0x38800000;  // 2^-14
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  // Subnormal: adding 0.5 lets the addition round to a multiple of 2^-24.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000;
  const uint32_t odd = (magnitude >> 13) & 1;
  const uint32_t normal = (magnitude - (112U << 23) + 0xfff + odd) >> 13;
  const uint32_t special = magnitude > kInfinity ? 0x7e00 : 0x7c00;
  const uint32_t half = magnitude >= kTooLarge        ? special
                        : magnitude < kSmallestNormal ? subnormal
                                                      : normal;
  return static_cast<uint16_t>(half | ((bits >> 16) & 0x8000));
}

void SumOverRanks(void* to, const void* const* from, int ranks, size_t count, ElementType type) {
  switch (type) {
    case ElementType::kInt8:
      return SumPlain<uint8_t>(to, from, ranks, count);
    case ElementType::kInt32:
      return SumPlain<uint32_t>(to, from, ranks, count);
    case ElementType::kInt64:
      return SumPlain<uint64_t>(to, from, ranks, count);
    case ElementType::kFloat16:
      return SumBlocks<uint16_t, float, HalfToFloat, FloatToHalf>(to, from, ranks, count);
    case ElementType::kFloat32:
      return SumPlain<float>(to, from, ranks, count);
    case ElementType::kFloat64:
      return SumPlain<double>(to, from, ranks, count);
  }
}

}  // namespace byteprophet
