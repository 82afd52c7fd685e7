// What elements may be, by the names that numpy and torch have for them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace byteprophet::exchange {

// The numbers travel in frames.
enum class Dtype : uint8_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBfloat16,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUint8,
  kBool,
  kComplex64,
  kComplex128,
};

struct DtypeFacts {
  std::string_view name;
  size_t size_bytes;
  bool has_fractions;
};

inline constexpr std::array<DtypeFacts, 12> kDtypes{{
    {"float32", 4, true},
    {"float64", 8, true},
    {"float16", 2, true},
    {"bfloat16", 2, true},
    {"int64", 8, false},
    {"int32", 4, false},
    {"int16", 2, false},
    {"int8", 1, false},
    {"uint8", 1, false},
    {"bool", 1, false},
    {"complex64", 8, true},
    {"complex128", 16, true},
}};

inline const DtypeFacts& FactsOf(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)]; }

// Throws std::invalid_argument for a name that is none of these.
inline Dtype DtypeNamed(std::string_view name) {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].name == name) return static_cast<Dtype>(i);
  }
  throw std::invalid_argument("mesh: elements of type " + std::string(name) +
                              " cannot be exchanged");
}

}  // namespace byteprophet::exchange
