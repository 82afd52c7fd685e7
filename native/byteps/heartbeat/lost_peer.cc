#include "lost_peer.h"

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace {

struct LostPeer {
  std::mutex mutex;  // guards line
  std::condition_variable changed;
  std::string line;
};

// Never destroyed: a thread may still wait when the process ends.
LostPeer& Known() {
  static auto* known = new LostPeer;
  return *known;
}

}  // namespace

void byteprophet::SetLostPeer(const std::string& line) {
  LostPeer& known = Known();
  std::lock_guard<std::mutex> lock(known.mutex);
  if (!known.line.empty()) return;  // the first stays: pointers to it are out
  known.line = line;
  known.changed.notify_all();
}

const char* byteps_lost_peer(int timeout_ms) {
  LostPeer& known = Known();
  std::unique_lock<std::mutex> lock(known.mutex);
  known.changed.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                         [&] { return !known.line.empty(); });
  return known.line.empty() ? nullptr : known.line.c_str();
}
