// The push gate with its real callers, under every policy: threads that add, local peers that get
// ready, the PUSH loop, and the thread that brings acknowledgements, in batches and out of order.
#include "native/plugin/push_gate.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "prophet/registry.h"
#include "tasks.h"

namespace byteprophet {
namespace {

constexpr std::chrono::seconds kLimit{60};
constexpr int kAdders = 3, kKeysEach = 20, kIterations = 30, kPeers = 2;
constexpr int kTotal = kAdders * kKeysEach * kIterations;

// Keys that are in flight, acknowledged by one thread.
class Acknowledger {
 public:
  explicit Acknowledger(PushGate& gate) : gate_(gate), thread_([this] { Run(); }) {}
  ~Acknowledger() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  void Sent(uint64_t key) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      EXPECT_EQ(std::count(keys_.begin(), keys_.end(), key), 0) << "twice in flight";
      keys_.push_back(key);
    }
    changed_.notify_one();
  }

 private:
  void Run() {
    std::mt19937 random(1);
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ended_ || !keys_.empty(); });
      if (keys_.empty()) return;
      if (random() % 4 == 0) changed_.wait_for(lock, std::chrono::microseconds(random() % 500));
      std::shuffle(keys_.begin(), keys_.end(), random);
      std::vector<uint64_t> batch(keys_.begin(), keys_.begin() + 1 + random() % keys_.size());
      keys_.erase(keys_.begin(), keys_.begin() + static_cast<std::ptrdiff_t>(batch.size()));
      lock.unlock();
      for (const uint64_t key : batch) {
        gate_.Acked(key);
        if (random() % 10 == 0) gate_.Acked(~uint64_t{0});  // of a key that nobody pushes
      }
      lock.lock();
    }
  }

  PushGate& gate_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint64_t> keys_;
  bool ended_ = false;
  std::thread thread_;
};

class PushGateOf : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(EveryPolicy, PushGateOf, testing::ValuesIn(prophet::PolicyNames()),
                         NameOfPolicy);

// Each key comes again and again, whether or not it has been acknowledged.
TEST_P(PushGateOf, EveryTaskOnceAndInOrderPerKey) {
  setenv("DMLC_NUM_SERVER", std::to_string(kServers).c_str(), 1);
  for (uint64_t tensor = 0; tensor < kAdders * kKeysEach; ++tensor) PlaceKey(tensor << 16);
  byteps::common::ReadyTable ready(kPeers, "TEST");
  PushGate gate(prophet::MakePolicy(GetParam(), {}), &ready);
  std::vector<std::thread> threads;
  std::atomic<int> taken{0};
  for (int adder = 0; adder < kAdders; ++adder) {
    threads.emplace_back([adder, &gate] {
      std::mt19937 random(static_cast<unsigned>(adder));
      for (int iteration = 0; iteration < kIterations; ++iteration) {
        for (int n = kKeysEach; n-- > 0;) {
          const auto tensor = static_cast<uint64_t>(adder * kKeysEach + n);
          gate.Add(MakeTask(tensor << 16, -n, iteration, 1 + random() % 2'000'000));
        }
        if (random() % 2 == 0) gate.OnIteration({.iteration = iteration});
        EXPECT_LE(gate.size(), static_cast<size_t>(kTotal));
      }
    });
  }
  // The peers are ready for a key's next task when the one before has been taken.
  std::vector<std::atomic<int>> taken_of(kAdders * kKeysEach);
  for (int peer = 0; peer < kPeers; ++peer) {
    threads.emplace_back([&] {
      std::vector<int> announced(taken_of.size());
      const auto start = std::chrono::steady_clock::now();
      while (taken < kTotal && std::chrono::steady_clock::now() - start < kLimit) {
        for (size_t tensor = 0; tensor < announced.size(); ++tensor) {
          if (announced[tensor] == kIterations || announced[tensor] > taken_of[tensor]) continue;
          ready.AddReadyCount(tensor << 16);
          gate.PeersChanged(&ready,
                            tensor << 16);  // the count tells BytePS' own gate, not this one
          ++announced[tensor];
        }
        std::this_thread::yield();
      }
    });
  }
  {
    Acknowledger acknowledger(gate);
    const auto start = std::chrono::steady_clock::now();
    while (taken < kTotal && std::chrono::steady_clock::now() - start < kLimit) {
      const Task task = gate.Take();
      if (task == nullptr) continue;
      const size_t tensor = task->key >> 16;
      EXPECT_EQ(task->version, taken_of[tensor]);
      acknowledger.Sent(task->key);
      ++taken_of[tensor];
      ++taken;
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken, kTotal);
  EXPECT_EQ(gate.size(), 0u);
}

// Notes what it is told.
class Told : public prophet::Policy {
 public:
  void OnReady(const prophet::Item&, prophet::TimeNs) override {}
  void OnAcked(const prophet::Item&, prophet::TimeNs) override {}
  void OnIteration(prophet::TimeNs) override { calls += "iteration "; }
  prophet::Decision Next(prophet::TimeNs) override { return {}; }
  size_t pending() const override { return 0; }
  std::string_view name() const override { return "told"; }
  void SetReadyTimes(std::span<const prophet::ReadyTime> times) override {
    calls += std::to_string(times.size()) + " times ";
  }
  void SetOrder(int64_t, std::span<const prophet::ReadyTime> times) override {
    calls += "order of " + std::to_string(times.size()) + " ";
  }
  void Reconfigure(const prophet::Settings& overrides) override {
    calls += std::to_string(overrides.size()) + " settings ";
  }
  const prophet::Settings& settings() const override { return settings_; }

  std::string calls;

 private:
  prophet::Settings settings_;
};

// Before the iteration begins: the policy plans its order then.
TEST(PushGate, AdoptsAPlanBetweenIterations) {
  auto made = std::make_unique<Told>();
  const Told& told = *made;
  PushGate gate(std::move(made), nullptr);
  const Plan plan{.settings = {{"a", 1}, {"b", 2}}, .times = {{.tensor = 1, .priority = -1}}};
  const AgreedOrder order{.bandwidth_bps = 3, .times = {{.tensor = 1}, {.tensor = 2}}};
  gate.OnIteration({.iteration = 1});
  EXPECT_EQ(told.calls, "iteration ");
  gate.OnIteration({.iteration = 2, .order = order, .plan = plan});
  EXPECT_EQ(told.calls, "iteration order of 2 2 settings 1 times iteration ");
}

}  // namespace
}  // namespace byteprophet
