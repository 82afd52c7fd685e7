#include "rank_sum.h"

#include <span>

#include "native/exchange/sums.h"

namespace byteprophet {
namespace {

using exchange::Dtype;

Dtype DtypeOf(ElementType type) {
  switch (type) {
    case ElementType::kInt8:
      return Dtype::kInt8;
    case ElementType::kInt32:
      return Dtype::kInt32;
    case ElementType::kInt64:
      return Dtype::kInt64;
    case ElementType::kFloat16:
      return Dtype::kFloat16;
    case ElementType::kFloat32:
      return Dtype::kFloat32;
    case ElementType::kFloat64:
      return Dtype::kFloat64;
  }
  return Dtype::kFloat32;
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

void SumOverRanks(void* to, const void* const* from, int ranks, size_t count, ElementType type) {
  const auto* parts = reinterpret_cast<const std::byte* const*>(from);
  exchange::Sum(DtypeOf(type), std::span(parts, static_cast<size_t>(ranks)), count,
                /*average=*/false, static_cast<std::byte*>(to));
}

}  // namespace byteprophet
