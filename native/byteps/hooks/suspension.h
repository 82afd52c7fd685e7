// Suspending and resuming a job: what patch 0024 calls.
//
// Workers that suspend leave the job by the same barrier as those that shut down. Their request
// says which it is, the scheduler role's answer passes it on, and servers and scheduler role then
// start anew instead of ending (byteps/server/__init__.py). The job goes on when as many workers
// have joined as they say there are.
//
// Who joins repeats its introduction until it is answered: the first may have reached a scheduler
// role that was about to start anew.
//
// Threads: job_is_suspended is written by ps-lite's receiving thread and, in a worker, by the one
// that suspends, and read after the barrier. Introductions are made by the thread that joins and
// taken by the receiving thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>

#include "ps/ps.h"

namespace ps {

// Whether this node's part in the job ends by suspending it.
inline std::atomic<bool> job_is_suspended{false};

inline constexpr int kSuspends = 1;  // in the head of a barrier's messages

inline void NoteSuspension(const Meta& barrier) {
  if (barrier.head == kSuspends) job_is_suspended = true;
}

inline void MarkSuspension(Meta* barrier) {
  if (job_is_suspended) barrier->head = kSuspends;
}

// While one is alive in a thread, that thread waits for the rest of the job only so long.
class LimitedWaits {
 public:
  explicit LimitedWaits(const char* what) { what_ = what; }
  LimitedWaits(const LimitedWaits&) = delete;
  LimitedWaits& operator=(const LimitedWaits&) = delete;
  ~LimitedWaits() { what_ = nullptr; }

  // Calls wait(interval), which returns whether the wait is over, until it is. Ends the process
  // when the time is.
  template <typename Wait>
  static void Until(const std::string& who, Wait wait) {
    using std::chrono::steady_clock;
    constexpr std::chrono::milliseconds kInterval{100};
    const char* limit = std::getenv("BYTEPROPHET_TIMEOUT_S");
    const double given_s = limit == nullptr ? 0.0 : std::atof(limit);
    const std::chrono::duration<double> limit_s(given_s > 0 ? given_s : 1800.0);
    const auto start = steady_clock::now();
    while (!wait(kInterval)) {
      if (what_ == nullptr || steady_clock::now() - start < limit_s) continue;
      std::cerr << "byteprophet: error: " << what_ << ": waited " << limit_s.count() << " s for "
                << who << " (BYTEPROPHET_TIMEOUT_S sets the limit)" << std::endl;
      std::_Exit(1);
    }
  }

 private:
  inline static thread_local const char* what_ = nullptr;
};

inline std::string Others(int workers, int servers) {
  return "the rest of the job (scheduler role, " + std::to_string(servers) + " servers, " +
         std::to_string(workers) + " workers)";
}

// Introduces a node until `ready`. The scheduler role only waits.
template <typename Introduce>
void WaitForTheRest(const std::atomic<bool>& ready, bool is_scheduler, Introduce introduce) {
  constexpr int kWaitsBetween = 10;
  int waits = 0;
  LimitedWaits::Until(Others(NumWorkers(), NumServers()), [&](auto interval) {
    if (!is_scheduler && waits++ % kWaitsBetween == 0) introduce();
    std::this_thread::sleep_for(interval);
    return ready.load();
  });
}

[[noreturn]] inline void Refuse(const Node& node, const std::string& why) {
  std::cerr << "byteprophet: error: the " << (node.role == Node::WORKER ? "worker" : "server")
            << " at " << node.hostname << ":" << node.port << " " << why << std::endl;
  std::_Exit(1);
}

// Whether an ADD_NODE message that comes before this node is ready brings something new. `nodes`:
// who has introduced himself to the scheduler role so far. The number of workers is what the first
// one says; everybody else takes it from the scheduler role's list.
inline bool TakesPart(const Meta& message, const Meta& nodes) {
  const auto count = [](const Meta& meta, Node::Role role) {
    return static_cast<int>(std::count_if(meta.control.node.begin(), meta.control.node.end(),
                                          [role](const Node& node) { return node.role == role; }));
  };
  Postoffice* office = Postoffice::Get();
  if (!office->is_scheduler()) {
    office->SetNumWorkers(count(message, Node::WORKER));
    return true;
  }
  const Node& newcomer = message.control.node.at(0);
  for (const Node& node : nodes.control.node) {
    if (node.hostname == newcomer.hostname && node.port == newcomer.port) return false;
  }
  const int present = count(nodes, newcomer.role);
  if (newcomer.role == Node::WORKER) {
    if (present == 0) office->SetNumWorkers(message.head);
    if (message.head != office->num_workers())
      Refuse(newcomer, "expects " + std::to_string(message.head) + " workers, another one " +
                           std::to_string(office->num_workers()) +
                           ": all must resume with the same number");
  }
  const int expected =
      newcomer.role == Node::WORKER ? office->num_workers() : office->num_servers();
  if (present >= expected)
    Refuse(newcomer, "is one too many: this job has " + std::to_string(expected));
  return true;
}

}  // namespace ps
