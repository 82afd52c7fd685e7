// How much went one way, and how long there was something to go: from the two, a bandwidth.
// One thread writes; any may read. The mutex is held for a few additions.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

namespace byteprophet::exchange {

struct Traffic {
  uint64_t payload_bytes = 0;
  uint64_t frames = 0;
  int64_t busy_ns = 0;
};

class Meter {
 public:
  void AddBytes(uint64_t payload_bytes) {
    const std::lock_guard lock(mutex_);
    traffic_.payload_bytes += payload_bytes;
  }

  void AddFrame() {
    const std::lock_guard lock(mutex_);
    ++traffic_.frames;
  }

  void SetBusy(bool busy) {
    if (busy == busy_) return;
    const std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    if (busy_) traffic_.busy_ns += Ns(now - since_);
    busy_ = busy;
    since_ = now;
  }

  Traffic Read() const {
    const std::lock_guard lock(mutex_);
    Traffic traffic = traffic_;
    if (busy_) traffic.busy_ns += Ns(Clock::now() - since_);
    return traffic;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static int64_t Ns(Clock::duration time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  }

  mutable std::mutex mutex_;
  Traffic traffic_;
  bool busy_ = false;  // only the writing thread changes it, which so may look without the mutex
  Clock::time_point since_;
};

}  // namespace byteprophet::exchange
