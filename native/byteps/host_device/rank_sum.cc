#include "rank_sum.h"

#include <span>

#include "exchange/sums.h"

namespace byteprophet {

void SumOverRanks(void* to, const void* const* from, int ranks, size_t count, ElementType type) {
  const auto* parts = reinterpret_cast<const std::byte* const*>(from);
  exchange::Sum(type, std::span(parts, static_cast<size_t>(ranks)), count, /*average=*/false,
                static_cast<std::byte*>(to));
}

}  // namespace byteprophet
