// Whether gradients travel over data links (native/byteps/van) in this job: what patch 0052 asks.
//
// With a policy, unless BYTEPROPHET_VAN=zmq asks for none: BytePS as shipped stays as it is.
// ps-lite's means to try out and to trace its own messages see none of those on links, so a job
// that uses one of them has no links.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>

#include "scheduled.h"
#include "silence.h"
#include "start_failures.h"

namespace byteprophet {

inline bool HasDataLinks() {
  const char* const van = std::getenv("BYTEPROPHET_VAN");
  const std::string_view name = van == nullptr || *van == '\0' ? "sockets" : van;
  if (name != "sockets" && name != "zmq")
    CannotStart("BYTEPROPHET_VAN='" + std::string(name) + "': must be sockets or zmq");
  for (const char* tool : {"PS_RESEND", "PS_DROP_MSG", "ENABLE_PROFILING", "DMLC_LOCAL"}) {
    const char* const value = std::getenv(tool);
    if (value != nullptr && std::atoi(value) != 0) return false;
  }
  return ps::PushesAreScheduled() && name == "sockets";
}

// When a link ends whose other end does not answer; 0: never. Twice as long as the scheduler role
// waits for heartbeats: it speaks first, and TCP, which tries again after twice the time, has tried
// once more after any outage that heartbeats survive. A wrong value is refused by the heartbeats.
inline std::chrono::milliseconds LinkVanishesAfter() {
  const char* const text = std::getenv("BYTEPROPHET_DEAD_AFTER_S");
  const double dead_after_s =
      text == nullptr || *text == '\0' ? Limits{}.dead_after_s : std::strtod(text, nullptr);
  if (!std::isfinite(dead_after_s)) return {};
  return std::chrono::milliseconds(
      static_cast<int64_t>(2000 * std::clamp(dead_after_s, 0.0, kLongestLimit)));
}

}  // namespace byteprophet
