// Sums of one array per rank, always in the order of the ranks: the same input gives the same bits,
// however the ranks were timed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace byteprophet {

// Signed integers add like unsigned ones of their width, and wrap around like them.
enum class ElementType : uint32_t { kInt8, kInt32, kInt64, kFloat16, kFloat32, kFloat64 };

size_t SizeBytes(ElementType type);
const char* Name(ElementType type);

// to[i] = from[0][i] + ... + from[ranks - 1][i] for i < count. `to` may be one of `from`, but must
// not overlap them otherwise. Half precision is added up in single precision and rounded once.
void SumOverRanks(void* to, const void* const* from, int ranks, size_t count, ElementType type);

}  // namespace byteprophet
