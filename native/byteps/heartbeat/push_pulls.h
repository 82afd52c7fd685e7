// The push_pull operations of this process, and which of them can never be completed because a
// worker that has to take part has left the job.
//
// Every worker takes part in every operation, in whatever order it begins them. One that leaves
// says how many it has begun. Once another one has completed as many, all that it has begun beyond
// lack the part of the one that has left: these fail, and nothing else does. Until then something
// outstanding is still to come, however slow a link is.
//
// Threads: any may call anything. The mutex is held for a look into a map; a callback is made
// without it, by whoever finds that the operation fails.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "departure.h"

namespace byteprophet {

class PushPulls {
 public:
  using Fail = std::function<void(const std::string& why)>;

  // Of this process. Never destroyed: threads may end operations while it ends.
  static PushPulls& OfProcess();

  // Whether an operation that begins now would fail.
  bool Hopeless() const;
  // Throws std::logic_error, in Python a RuntimeError, if so.
  void ThrowIfHopeless() const;

  // `operation` is no other's that is in flight. `fail` is called once if it cannot be completed;
  // at once if that is known, and then it is not begun, and the result is false.
  bool Begin(uint64_t operation, Fail fail);

  // It is over. False if it has failed: then whoever waited knows, and nothing is left to do.
  bool End(uint64_t operation);

  // This worker begins no more and waits for the others.
  void Leave(bool suspends);
  std::optional<Departure> departure() const;

  // Another worker has left after `operations` of them; `who` says so: "worker-1 has finished".
  void HasLeft(uint64_t operations, const std::string& who);

  // As in the beginning: this process has left the job, and may join it again.
  void Reset();

 private:
  struct Left {
    uint64_t operations;
    std::string who;
  };

  // REQUIRES: mutex_ is held.
  bool IsHopeless() const { return left_ && completed_ >= left_->operations; }
  std::string Why() const;
  std::map<uint64_t, Fail> TakeHopeless();

  mutable std::mutex mutex_;  // guards what follows
  std::map<uint64_t, Fail> outstanding_;
  uint64_t begun_ = 0, completed_ = 0;
  std::optional<Departure> departure_;
  std::optional<Left> left_;  // the one with the fewest operations
};

// While one is alive in a thread, that thread prepares an operation. For the first one of a name it
// waits until all workers do; it gives up when that is hopeless or the process leaves the job.
class Preparation {
 public:
  Preparation() { ++threads_; }
  ~Preparation() { --threads_; }
  Preparation(const Preparation&) = delete;
  Preparation& operator=(const Preparation&) = delete;

  // Waits until there is none, but not for one that waits for a job which never begins.
  static void WaitForAll();

 private:
  inline static std::atomic<int> threads_{0};
};

}  // namespace byteprophet
