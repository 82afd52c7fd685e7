// The order in which a server answers pulls: per worker, most urgent first.
//
// BytePS answers in the order in which sums are finished. Where sums come faster than a worker's
// link takes them (two workers that are out of step by 20 ms make them come at up to twice the
// link's rate), answers queue in ZeroMQ, in the kernel and at the link, and an urgent one waits
// behind all of them. So answers wait here, ordered, and only as much is handed over as keeps the
// worker's link busy (flow.h). Answers to a worker whose link keeps up leave at once, in the thread
// that brings them.
//
// Nothing waits for a particular answer, and none waits for ever: what the kernel says only delays,
// and where it does not move for kPatience, one answer goes all the same. Where the kernel says
// nothing (not TCP, not Linux), answers leave as they come.
//
// Threads. Heard(): those that receive, ZeroMQ's and the data links'. Add(): these and the
// engine's. One thread of this object's own, started by the first answer that has to wait, sends
// what waited. The mutex guards everything here; answers are sent outside it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "flow.h"

namespace byteprophet {

class Answers {
 public:
  static constexpr std::chrono::milliseconds kPatience{50};

  // The one of this process.
  static Answers& Get();

  Answers() = default;
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;
  ~Answers() { Stop(); }

  // `worker` is reached through the TCP connection `fd`.
  void Heard(int worker, int fd);
  // Calls `send`, which hands `bytes` to that connection: now, or when its turn has come. Smaller
  // ranks go first, then earlier ones.
  void Add(int worker, int32_t rank, uint64_t bytes, std::function<void()> send);
  // Sends what still waits and ends the thread, for good: what comes later is sent by Add().
  void Stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Answer {
    uint64_t bytes = 0;
    std::function<void()> send;
  };
  struct Worker {
    int fd = -1;
    Flow flow;
    std::map<std::pair<int32_t, uint64_t>, Answer> waiting;  // by rank and arrival
    Clock::time_point last_sent;
  };

  // All REQUIRE: mutex_ is held.
  bool MaySend(Worker& worker, Clock::time_point now);
  std::function<void()> TakeNext(Clock::time_point now);
  bool AnyWaits() const;
  std::chrono::nanoseconds UntilNextLook() const;

  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<int, Worker> workers_;
  uint64_t arrivals_ = 0;
  bool stopping_ = false;
  std::thread sender_;
};

// The command of a pull carries the tensor's priority to the server: the request's type in the low
// bits, above it 0 for unranked tensors and then the place in the order of need.
int CommandWithPriority(int type, int32_t priority);
int TypeOf(int command);
int32_t RankOf(int command);

}  // namespace byteprophet
