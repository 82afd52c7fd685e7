// A counter in shared memory that processes can sleep on.
//
// A raw futex and not a process-shared mutex with a condition: nobody ever holds anything, so a
// process that is killed, at whatever instruction, leaves nothing locked.
//
// No wake-up is lost. Whoever publishes stores the value and then looks for sleepers; whoever waits
// registers as a sleeper and then looks at the value. Both orders are sequentially consistent, so
// one of the two sees the other, and the kernel compares the value once more before it sleeps. A
// sleeper that is killed stays registered, which costs a needless system call per value.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace byteprophet {

// Zero bytes are a valid SharedCell of value 0, so a fresh segment needs no construction. One cell
// per cache line.
struct alignas(64) SharedCell {
  using Clock = std::chrono::steady_clock;

  // Has `target` been reached? Values may wrap around: they are less than 2^31 apart.
  bool Reached(uint32_t target) const {
    return static_cast<int32_t>(value.load(std::memory_order_acquire) - target) >= 0;
  }
  // What was written before Publish(v) is seen by who finds v reached. One thread publishes.
  void Publish(uint32_t new_value);
  // Wakes all sleepers to look around; the value stays.
  void WakeAll();
  // Sleeps until `target` is reached, somebody calls WakeAll, or it is `until`; whether it is
  // reached.
  bool SleepUntil(uint32_t target, Clock::time_point until);

  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);

}  // namespace byteprophet
