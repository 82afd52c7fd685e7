// Whether gradients travel over data links (native/byteps/van) in this job: what patch 0052 asks.
//
// Where BYTEPROPHET_VAN=sockets asks for them, and only with a policy: BytePS as shipped stays as
// it is. ps-lite's means to try out and to trace its own messages see none of those on links, so a
// job that uses one of them has no links.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include "scheduled.h"
#include "start_failures.h"

namespace byteprophet {

inline bool HasDataLinks() {
  const char* const van = std::getenv("BYTEPROPHET_VAN");
  const std::string_view name = van == nullptr || *van == '\0' ? "zmq" : van;
  if (name != "sockets" && name != "zmq")
    CannotStart("BYTEPROPHET_VAN='" + std::string(name) + "': must be sockets or zmq");
  for (const char* tool : {"PS_RESEND", "PS_DROP_MSG", "ENABLE_PROFILING", "DMLC_LOCAL"}) {
    const char* const value = std::getenv(tool);
    if (value != nullptr && std::atoi(value) != 0) return false;
  }
  return ps::PushesAreScheduled() && name == "sockets";
}

}  // namespace byteprophet
