// The C interface of the plug-in, for ctypes. All functions are thread safe; none needs Python's
// lock.
#include <cstdint>

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

}  // extern "C"
