// The sum of the same elements of all ranks, in the order of ranks, so that it is the same bits
// wherever it is made.
#pragma once

#include <cstddef>
#include <span>

#include "exchange/dtype.h"

namespace byteprophet::exchange {

// out[i] = parts[0][i] + parts[1][i] + ..., times 1/parts with `average`, which types without
// fractions do not have. `out` may be one of the parts. float16 and bfloat16 are summed as float
// and rounded once, to nearest even; integers wrap around; of bools it is whether any is true.
// All of them are aligned to their elements.
void Sum(Dtype dtype, std::span<const std::byte* const> parts, size_t elements, bool average,
         std::byte* out);

}  // namespace byteprophet::exchange
