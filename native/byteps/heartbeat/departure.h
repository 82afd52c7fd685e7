// What a worker says that has ended its part and waits for the others, as it does in shutdown() and
// suspend().
#pragma once

#include <cstdint>

namespace byteprophet {

struct Departure {
  uint64_t operations = 0;  // push_pull operations that it has begun, all told
  bool suspends = false;
};

}  // namespace byteprophet
