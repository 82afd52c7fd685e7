// Sums of one array per rank, always in the order of the ranks: the same input gives the same bits,
// however the ranks were timed.
#pragma once

#include <cstddef>

#include "exchange/dtype.h"

namespace byteprophet {

// BytePS has a part of them. Signed integers add like unsigned ones of their width, and wrap around
// like them.
using ElementType = exchange::Dtype;

inline size_t SizeBytes(ElementType type) { return exchange::FactsOf(type).size_bytes; }

// to[i] = from[0][i] + ... + from[ranks - 1][i] for i < count. `to` may be one of `from`, but must
// not overlap them otherwise. Half precision is added up in single precision and rounded once.
void SumOverRanks(void* to, const void* const* from, int ranks, size_t count, ElementType type);

}  // namespace byteprophet
