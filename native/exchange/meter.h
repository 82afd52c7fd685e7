// How much went one way, and how long there was something to go. From what the link carried in such
// times follows its bandwidth. The kernel takes bytes before the link carries them. So a time
// counts only if the link carried at least half of what the kernel had. One thread writes; any may
// read. The mutex is held for a few additions.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

namespace byteprophet::exchange {

struct Traffic {
  uint64_t payload_bytes = 0;
  uint64_t frames = 0;
  int64_t busy_ns = 0;         // there was something to go
  uint64_t carried_bytes = 0;  // by the link, in `carrying_ns`
  int64_t carrying_ns = 0;     // the times of `busy_ns` that count
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

  bool busy() const { return busy_; }

  // `waiting_bytes`: what the kernel has, and the link has not carried.
  void SetBusy(bool busy, uint64_t waiting_bytes = 0) {
    if (busy == busy_) return;
    const std::lock_guard lock(mutex_);
    if (busy_) AddBusyTime(traffic_, waiting_bytes);
    busy_ = busy;
    since_ = Clock::now();
    bytes_before_ = traffic_.payload_bytes;
    waiting_before_ = waiting_bytes;
  }

  Traffic Read() const {
    const std::lock_guard lock(mutex_);
    Traffic traffic = traffic_;
    if (busy_) AddBusyTime(traffic, 0);
    return traffic;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void AddBusyTime(Traffic& traffic, uint64_t waiting_bytes) const {
    const int64_t took_ns =
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - since_).count();
    traffic.busy_ns += took_ns;
    const uint64_t had_bytes = waiting_before_ + traffic.payload_bytes - bytes_before_;
    if (had_bytes < 2 * waiting_bytes) return;
    traffic.carried_bytes += had_bytes - waiting_bytes;
    traffic.carrying_ns += took_ns;
  }

  mutable std::mutex mutex_;
  Traffic traffic_;
  bool busy_ = false;  // only the writing thread changes it, which so may look without the mutex
  Clock::time_point since_;
  uint64_t bytes_before_ = 0, waiting_before_ = 0;  // it became busy
};

}  // namespace byteprophet::exchange
