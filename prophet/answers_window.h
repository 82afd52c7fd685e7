// How much a server hands to a worker's connection, whatever its rate, before it waits for
// acknowledgements (native/byteps/answers/flow.h says why so much).
#pragma once

#include <cstdint>

namespace prophet {

inline constexpr uint64_t kAnswersBytes = 384 << 10;

}  // namespace prophet
