// Tells whoever waits which push_pull operations have finished, without polling and without
// Python's lock.
//
// HandleManager::MarkDone, defined again, runs on BytePS' loop threads; NextDone on the waiting
// thread. The queue has a mutex of its own, taken with no other lock held. Until the first call of
// NextDone only the latest handles are kept, so the queue stays short in a process that never asks.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "byteps/torch/handle_manager.h"
#include "native/plugin/plugin.h"

namespace byteprophet {
namespace {

// Far more than can complete between a first push_pull and the first question.
constexpr size_t kUnaskedHandles = 1 << 16;

// Never destroyed: a daemon thread may still wait when the process ends.
std::mutex& done_mutex = *new std::mutex;
std::condition_variable& done_changed = *new std::condition_variable;
std::deque<int>& done = *new std::deque<int>;  // guarded by done_mutex
bool asked = false;                            // guarded by done_mutex

void Announce(int handle) {
  {
    std::lock_guard<std::mutex> lock(done_mutex);
    done.push_back(handle);
    if (!asked && done.size() > kUnaskedHandles) done.pop_front();
  }
  done_changed.notify_one();
}

}  // namespace

int NextDone(std::chrono::milliseconds timeout, int* handles, int capacity) {
  std::unique_lock<std::mutex> lock(done_mutex);
  asked = true;
  done_changed.wait_for(lock, timeout, [] { return !done.empty(); });
  const auto count = std::min<size_t>(done.size(), static_cast<size_t>(std::max(0, capacity)));
  const auto end = done.begin() + static_cast<std::ptrdiff_t>(count);
  std::copy(done.begin(), end, handles);
  done.erase(done.begin(), end);
  return static_cast<int>(count);
}

}  // namespace byteprophet

namespace byteps {
namespace torch {

void HandleManager::MarkDone(int handle, const Status& status) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    results_[handle] = std::make_shared<Status>(status);
  }
  byteprophet::Announce(handle);
}

}  // namespace torch
}  // namespace byteps
