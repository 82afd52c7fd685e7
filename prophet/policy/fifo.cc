#include "prophet/policy/fifo.h"

namespace prophet {

int64_t FifoPolicy::RankOf(const Item& /*item*/) { return arrivals_++; }

bool FifoPolicy::MaySend(const Item& /*head*/, const ServerLoad& /*load*/, TimeNs /*now*/) {
  return true;
}

}  // namespace prophet
