// A server of a real job, or its scheduler role (DMLC_ROLE): what "import byteps.server" runs. It
// starts anew when the workers suspended. What it serves is recorded, and taken meanwhile.
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "served.h"

extern "C" bool byteps_server();

int main(int, char** arguments) {
  byteps_record_served(1);
  std::atomic<bool> ended{false};
  std::thread taker([&ended] {
    std::vector<byteprophet::Served> some(64);
    while (!ended) {
      while (byteps_take_served(some.data(), static_cast<int>(some.size())) > 0) {
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const bool suspended = byteps_server();
  ended = true;
  taker.join();
  if (!suspended) return 0;
  setenv("BYTEPROPHET_SUSPENDED", "1", 1);
  execv("/proc/self/exe", arguments);
  return 1;
}
