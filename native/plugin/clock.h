// The plug-in's clock: CLOCK_MONOTONIC, the same as Python's time.monotonic_ns().
#pragma once

#include <chrono>

#include "prophet/item.h"

namespace byteprophet {

inline prophet::TimeNs NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace byteprophet
