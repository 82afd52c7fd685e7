#include "shared_cell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace byteprophet {

void SharedCell::Publish(uint32_t new_value) {
  value.store(new_value, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) != 0) WakeAll();
}

void SharedCell::WakeAll() { syscall(SYS_futex, &value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

bool SharedCell::SleepUntil(uint32_t target, Clock::time_point until) {
  if (Reached(target)) return true;
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = value.load(std::memory_order_seq_cst);
  const auto left =
      std::chrono::duration_cast<std::chrono::nanoseconds>(until - Clock::now()).count();
  if (static_cast<int32_t>(seen - target) < 0 && left > 0) {
    const timespec timeout{.tv_sec = static_cast<time_t>(left / 1'000'000'000),
                           .tv_nsec = static_cast<long>(left % 1'000'000'000)};
    // Whatever ends the sleep (a wake-up, the time, a signal, a changed value): the caller looks.
    syscall(SYS_futex, &value, FUTEX_WAIT, seen, &timeout, nullptr, 0);
  }
  sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return Reached(target);
}

}  // namespace byteprophet
