#include "native/plugin/stamps.h"

#include "native/plugin/clock.h"

namespace byteprophet {

EngineStamps& EngineStamps::Get() {
  static EngineStamps& stamps = *new EngineStamps;
  return stamps;
}

void EngineStamps::Stamp(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  stamps_.Add({.number = number, .time_ns = NowNs()});  // under the mutex: in order of time
}

int EngineStamps::Take(EngineStamp* out, int capacity) {
  std::lock_guard<std::mutex> lock(mutex_);
  return stamps_.Take(out, capacity);
}

}  // namespace byteprophet
