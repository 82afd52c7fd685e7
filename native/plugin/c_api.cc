// The C interface of the plug-in, for ctypes. All functions are thread safe; none needs Python's
// lock.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <stdexcept>

#include "native/plugin/plugin.h"
#include "native/plugin/push_gate.h"

extern "C" {

// Partitions that went through the policy in this process so far.
uint64_t byteprophet_scheduled_partitions() {
  return byteprophet::PushGate::scheduled_partitions();
}

// Sleeps until push_pull operations have finished, at most timeout_ms. Writes up to `capacity`
// handles, each once, and returns how many; 0 when the time is over. One thread per process calls
// it.
int byteprophet_next_done(int timeout_ms, int* handles, int capacity) {
  return byteprophet::NextDone(std::chrono::milliseconds(timeout_ms), handles, capacity);
}

void byteprophet_on_iteration() { byteprophet::OnIteration(); }

// Changes settings of the policy, "name=integer,...", from its next decision on. 0; or -1, nothing
// changed, and one line in `error`, cut to `error_bytes`.
int byteprophet_reconfigure(const char* settings_text, char* error, int error_bytes) {
  try {
    byteprophet::Reconfigure(settings_text);
    return 0;
  } catch (const std::invalid_argument& refused) {
    std::snprintf(error, static_cast<size_t>(std::max(0, error_bytes)), "%s", refused.what());
    return -1;
  }
}

}  // extern "C"
