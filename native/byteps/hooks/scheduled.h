// Whether this job's pushes are scheduled by byteprophet: what the patches that change how BytePS
// sends look at, so that BytePS as shipped stays as it is.
#pragma once

#include <cstdlib>
#include <string_view>

namespace ps {

inline bool PushesAreScheduled() {
  const char* name = std::getenv("BYTEPS_SCHEDULER");
  return name != nullptr && *name != '\0' && std::string_view(name) != "stock";
}

}  // namespace ps
