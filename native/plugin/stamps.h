// When operations of a framework's engine ran: what a front hands to MXNet's engine so that it
// knows when arrays were complete.
//
// Threads. Stamp(): any thread of the engine. Take(): the observer. One mutex guards everything; it
// is innermost. Memory is bounded by a ring. A front that wants no stamps hands over no operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "native/row_ring.h"

namespace byteprophet {

// As _STAMP of byteprophet/_plugin.py. Times: CLOCK_MONOTONIC.
struct EngineStamp {
  uint64_t number = 0;  // the front's own
  int64_t time_ns = 0;
};

class EngineStamps {
 public:
  static constexpr size_t kRingStamps = 1 << 16;

  // The one of this process; never destroyed, as the engine's threads may outlive main.
  static EngineStamps& Get();

  EngineStamps() { stamps_.MakeRoom(kRingStamps); }

  void Stamp(uint64_t number);
  // Copies up to `capacity` stamps to `out`, in order of time, each once.
  int Take(EngineStamp* out, int capacity);

 private:
  std::mutex mutex_;
  RowRing<EngineStamp> stamps_;  // guarded by mutex_
};

}  // namespace byteprophet
