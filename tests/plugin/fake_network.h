// Stands in for ps-lite and the servers below BytePS' real pipeline: pushes and pulls go in from
// loops like BytePS' own, and one thread, as ps-lite's customer thread, hands acknowledgements and
// answers to BytePS' real FinishOrProceed: late, in any order between keys, in batches. A pull is
// answered after its push arrived, before or after that push is acknowledged.
//
// The answer to bytes b is 2 b + 1 each, so a partition that was pushed or answered twice, late or
// for another one shows. Checked here: a key's pushes come in order of their tasks' versions, one
// at a time.
//
// Threads. PushLoop() and PullLoop() are started by BytePS; the customer thread by Start(). One
// mutex guards everything; no call of BytePS is made under it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "native/plugin/stage.h"

namespace byteprophet {

class FakeNetwork {
 public:
  using Clock = std::chrono::steady_clock;

  // BytePS' loops are plain functions: there is one network.
  static FakeNetwork& Get();
  static void PushLoop();
  static void PullLoop();

  void Start(uint64_t seed);
  // Everything has been delivered: otherwise it says what was not.
  void Stop();

  std::string outstanding();
  // What was wrong so far; empty if nothing.
  std::string failure();
  size_t pushes();

 private:
  struct Delivery {
    Task task;
    bool answer = false;  // to a pull; else a push's acknowledgement
  };
  struct Key {
    int next_version = 0;
    bool unacknowledged = false;  // the last push; its answer tells as much as its acknowledgement
    Clock::time_point arrives;
    std::map<int, std::vector<uint8_t>> bytes;  // by version: pushed and not yet pulled
  };

  void Push(const Task& task);
  void Pull(const Task& task);
  void Run();
  void Check(bool holds, const std::string& what);
  Clock::duration RandomDelay();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937_64 random_;
  std::map<uint64_t, Key> keys_;
  std::multimap<Clock::time_point, Delivery> due_;
  std::string failure_;
  size_t pushes_ = 0;
  bool stopping_ = false;
  std::thread customer_;
};

}  // namespace byteprophet
