// Whether this job's pushes are scheduled by byteprophet: what the patches that change how BytePS
// sends look at, so that BytePS as shipped stays as it is. Looked up once per process, since
// some of them ask for every message.
#pragma once

#include <cstdlib>
#include <string_view>

namespace ps {

inline bool PushesAreScheduled() {
  static const bool scheduled = [] {
    const char* name = std::getenv("BYTEPS_SCHEDULER");
    return name != nullptr && *name != '\0' && std::string_view(name) != "stock";
  }();
  return scheduled;
}

}  // namespace ps
