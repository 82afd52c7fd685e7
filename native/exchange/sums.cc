// Blocks that stay in the nearest cache: each part is read once, and the loops over a block are
// such that compilers make vectors of them.
#include "exchange/sums.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace byteprophet::exchange {
namespace {

constexpr size_t kBlock = 1024;  // elements

// How elements are stored, what they are summed as, and the way from one to the other.
template <typename T>
struct Plain {
  using Stored = T;
  using Summed = T;
  static T Load(T value) { return value; }
  static T Add(T a, T b) { return static_cast<T>(a + b); }
  static T Store(T value) { return value; }
};

struct Bool {
  using Stored = uint8_t;
  using Summed = uint8_t;
  static uint8_t Load(uint8_t value) { return value; }
  static uint8_t Add(uint8_t a, uint8_t b) { return a | b; }
  static uint8_t Store(uint8_t value) { return value; }
};

struct Bfloat16 {
  using Stored = uint16_t;
  using Summed = float;
  static float Load(uint16_t value) { return std::bit_cast<float>(uint32_t{value} << 16); }
  static float Add(float a, float b) { return a + b; }
  static uint16_t Store(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    // Half of the last kept place, less one unless that place is odd: ties to even.
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    // The carry must not make an infinity, or nothing, of what is no number.
    const uint32_t no_number = (bits >> 16) | 0x40;
    return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? no_number : rounded);
  }
};

struct Float16 {
  using Stored = uint16_t;
  using Summed = float;
  // Exponents are counted from 15 in a float16, from 127 in a float.
  static constexpr uint32_t kRebias = (127 - 15) << 23;

  static float Load(uint16_t value) {
    const uint32_t sign = (uint32_t{value} & 0x8000) << 16;
    const uint32_t magnitude = (uint32_t{value} & 0x7fff) << 13;
    // Infinities and what is no number have the largest exponent in both.
    const uint32_t normal = magnitude + kRebias + (magnitude >= 0x0f800000 ? kRebias : 0);
    // Below the normal ones: units of 2^-24.
    const float tiny = static_cast<float>(static_cast<int32_t>(value & 0x3ff)) * 0x1p-24f;
    const uint32_t bits = magnitude < 0x00800000 ? std::bit_cast<uint32_t>(tiny) : normal;
    return std::bit_cast<float>(bits | sign);
  }
  static float Add(float a, float b) { return a + b; }
  static uint16_t Store(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (bits >> 16) & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    // As above, 13 places less. A carry into the exponent is right, up to infinity.
    const uint32_t normal = (magnitude - kRebias + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    // 0.5 has its last place at 2^-24: adding it rounds to the units below the normal ones.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    const uint32_t tiny = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f);
    uint32_t result = magnitude < 0x38800000 ? tiny : normal;  // 2^-14, the least normal one
    result = magnitude >= 0x47800000 ? 0x7c00 : result;        // 2^16
    result = magnitude > 0x7f800000 ? 0x7e00 : result;
    return static_cast<uint16_t>(result | sign);
  }
};

template <typename Type>
void SumAs(std::span<const std::byte* const> parts, size_t elements, bool average,
           std::byte* out_bytes) {
  using Stored = typename Type::Stored;
  using Summed = typename Type::Summed;
  const auto scale = static_cast<Summed>(1.0 / static_cast<double>(parts.size()));
  alignas(64) Summed sum[kBlock];
  for (size_t first = 0; first < elements; first += kBlock) {
    const size_t count = std::min(kBlock, elements - first);
    const auto block = [&](size_t r) { return reinterpret_cast<const Stored*>(parts[r]) + first; };
    const Stored* part = block(0);
    for (size_t i = 0; i < count; ++i) sum[i] = Type::Load(part[i]);
    for (size_t r = 1; r < parts.size(); ++r) {
      part = block(r);
      for (size_t i = 0; i < count; ++i) sum[i] = Type::Add(sum[i], Type::Load(part[i]));
    }
    if (average) {
      for (size_t i = 0; i < count; ++i) sum[i] = static_cast<Summed>(sum[i] * scale);
    }
    Stored* const out = reinterpret_cast<Stored*>(out_bytes) + first;
    for (size_t i = 0; i < count; ++i) out[i] = Type::Store(sum[i]);
  }
}

}  // namespace

void Sum(Dtype dtype, std::span<const std::byte* const> parts, size_t elements, bool average,
         std::byte* out) {
  switch (dtype) {
    case Dtype::kFloat32:
      return SumAs<Plain<float>>(parts, elements, average, out);
    case Dtype::kFloat64:
      return SumAs<Plain<double>>(parts, elements, average, out);
    case Dtype::kFloat16:
      return SumAs<Float16>(parts, elements, average, out);
    case Dtype::kBfloat16:
      return SumAs<Bfloat16>(parts, elements, average, out);
    // Without signs, as only their sums may wrap around.
    case Dtype::kInt64:
      return SumAs<Plain<uint64_t>>(parts, elements, false, out);
    case Dtype::kInt32:
      return SumAs<Plain<uint32_t>>(parts, elements, false, out);
    case Dtype::kInt16:
      return SumAs<Plain<uint16_t>>(parts, elements, false, out);
    case Dtype::kInt8:
    case Dtype::kUint8:
      return SumAs<Plain<uint8_t>>(parts, elements, false, out);
    case Dtype::kBool:
      return SumAs<Bool>(parts, elements, false, out);
    // A complex number is two: its parts.
    case Dtype::kComplex64:
      return SumAs<Plain<float>>(parts, 2 * elements, average, out);
    case Dtype::kComplex128:
      return SumAs<Plain<double>>(parts, 2 * elements, average, out);
  }
}

}  // namespace byteprophet::exchange
