// A stage with its real callers: threads that add, one loop that takes, local peers that get ready.
#include "native/plugin/stage.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>
#include <vector>

#include "tasks.h"

namespace byteprophet {
namespace {

constexpr std::chrono::seconds kLimit{60};
constexpr int kAdders = 4, kTasks = 1500;

std::vector<std::thread> StartAdders(Stage& stage) {
  std::vector<std::thread> adders;
  for (int adder = 0; adder < kAdders; ++adder) {
    adders.emplace_back([adder, &stage] {
      for (int n = 0; n < kTasks; ++n) stage.Add(MakeTask(static_cast<uint64_t>(adder), 0, n));
    });
  }
  return adders;
}

TEST(Stage, EveryTaskOnceAndInOrderPerKey) {
  Stage stage(std::make_shared<Waiter>(), nullptr);
  auto adders = StartAdders(stage);
  std::map<uint64_t, int> next;
  const auto start = std::chrono::steady_clock::now();
  for (int taken = 0; taken < kAdders * kTasks;) {
    ASSERT_LT(std::chrono::steady_clock::now() - start, kLimit) << "took " << taken;
    const Task task = stage.Take(true);
    if (task == nullptr) continue;
    EXPECT_EQ(task->version, next[task->key]++);
    ++taken;
  }
  for (std::thread& adder : adders) adder.join();
  EXPECT_EQ(stage.size(), 0u);
}

// As the root's NCCL thread does: REDUCE, then BROADCAST; it may wait only where a round starts.
TEST(Stage, OneThreadServesTwoStages) {
  const auto waiter = std::make_shared<Waiter>();
  Stage reduce(waiter, nullptr), broadcast(waiter, nullptr);
  auto adders = StartAdders(reduce);
  int reduced = 0, done = 0;
  const auto start = std::chrono::steady_clock::now();
  while (done < kAdders * kTasks) {
    ASSERT_LT(std::chrono::steady_clock::now() - start, kLimit) << "took " << done;
    for (bool first = true;; first = false) {
      Task task = reduce.Take(first);
      if (task == nullptr) break;
      ++reduced;
      // Another thread brings it back, at its own time.
      if (reduced % 500 == 0) {
        std::thread([&broadcast, task] { broadcast.Add(task); }).join();
      } else {
        broadcast.Add(std::move(task));
      }
    }
    while (broadcast.Take(false) != nullptr) ++done;
  }
  for (std::thread& adder : adders) adder.join();
  EXPECT_EQ(reduced, kAdders * kTasks);
}

// The non-root's NCCL thread is told which key to take, and the task is there already.
TEST(Stage, TakesByKeyWhileOthersAdd) {
  Stage stage(std::make_shared<Waiter>(), nullptr);
  std::atomic<int> announced{0};
  std::thread coordinator([&] {
    for (int n = 0; n < kTasks; ++n) {
      stage.Add(MakeTask(static_cast<uint64_t>(n)));
      announced.store(n + 1);
    }
  });
  auto adders = StartAdders(stage);
  const auto start = std::chrono::steady_clock::now();
  for (int key = kAdders; key < kTasks;) {
    ASSERT_LT(std::chrono::steady_clock::now() - start, kLimit) << "at key " << key;
    if (key >= announced.load()) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_NE(stage.TakeKey(static_cast<uint64_t>(key)), nullptr);
    ++key;
  }
  coordinator.join();
  for (std::thread& adder : adders) adder.join();
  EXPECT_EQ(stage.TakeKey(kTasks), nullptr);
  EXPECT_EQ(stage.size(), static_cast<size_t>(kAdders * kTasks + kAdders));
}

// A task is taken when all local peers have announced its key, and then takes the announcements.
TEST(Stage, WaitsForLocalPeers) {
  constexpr int kPeers = 3;
  byteps::common::ReadyTable ready(kPeers, "TEST");
  Stage stage(std::make_shared<Waiter>(), &ready);
  for (int n = 0; n < kTasks; ++n) stage.Add(MakeTask(static_cast<uint64_t>(n)));
  stage.Add(MakeTask(kTasks));  // never ready
  std::vector<std::thread> peers;
  for (int peer = 0; peer < kPeers; ++peer) {
    peers.emplace_back([&] {
      for (int n = 0; n < kTasks; ++n) {
        ready.AddReadyCount(static_cast<uint64_t>(n));
        stage.PeersChanged(&ready);  // the count tells BytePS' own stages, not this one
      }
    });
  }
  std::vector<int> taken(kTasks);
  const auto start = std::chrono::steady_clock::now();
  for (int count = 0; count < kTasks;) {
    ASSERT_LT(std::chrono::steady_clock::now() - start, kLimit) << "took " << count;
    const Task task = stage.Take(true);
    if (task == nullptr) continue;
    ++taken.at(task->key);
    EXPECT_FALSE(ready.IsKeyReady(task->key));
    ++count;
  }
  for (std::thread& peer : peers) peer.join();
  EXPECT_EQ(taken, std::vector<int>(kTasks, 1));
  EXPECT_EQ(stage.Take(true), nullptr);
  EXPECT_EQ(stage.size(), 1u);
}

// Keys that can be taken now.
std::vector<uint64_t> TakeAll(Stage& stage) {
  std::vector<uint64_t> keys;
  while (const Task task = stage.Take(false)) keys.push_back(task->key);
  return keys;
}

using Keys = std::vector<uint64_t>;

TEST(Stage, WithACreditByPriorityAndSmallOnesOvertake) {
  Stage stage(std::make_shared<Waiter>(), nullptr, 100);
  stage.Add(MakeTask(1, -3, 0, 30));
  stage.Add(MakeTask(2, -2, 0, 90));
  stage.Add(MakeTask(4, -1, 0, 60));
  stage.Add(MakeTask(3, -1, 0, 10));
  EXPECT_EQ(TakeAll(stage), (Keys{3, 4, 1}));  // 30 left: not enough for key 2
  EXPECT_EQ(stage.size(), 1u);
  stage.Finished(60);
  EXPECT_EQ(TakeAll(stage), Keys{});
  stage.Finished(30);
  EXPECT_EQ(TakeAll(stage), (Keys{2}));
}

TEST(Stage, ATaskLongerThanTheWholeCreditGoesAlone) {
  Stage stage(std::make_shared<Waiter>(), nullptr, 100);
  stage.Add(MakeTask(1, -1, 0, 300));
  stage.Add(MakeTask(2, -2, 0, 10));
  stage.Add(MakeTask(3, -3, 0, 300));
  EXPECT_EQ(TakeAll(stage), (Keys{1}));
  stage.Finished(300);
  EXPECT_EQ(TakeAll(stage), (Keys{2}));
  stage.Finished(10);
  EXPECT_EQ(TakeAll(stage), (Keys{3}));
}

// Whoever is done with a task wakes the thread that ran out of credit.
TEST(Stage, CreditThatComesBackIsTakenUp) {
  Stage stage(std::make_shared<Waiter>(), nullptr, 100);
  auto adders = StartAdders(stage);  // of 100 each
  const auto start = std::chrono::steady_clock::now();
  std::atomic<int> taken{0}, done{0};
  std::thread finisher([&] {
    while (done < kAdders * kTasks && std::chrono::steady_clock::now() - start < kLimit) {
      if (done == taken) {
        std::this_thread::yield();
        continue;
      }
      ++done;
      stage.Finished(100);
    }
  });
  while (taken < kAdders * kTasks) {
    ASSERT_LT(std::chrono::steady_clock::now() - start, kLimit) << "took " << taken;
    if (stage.Take(true) == nullptr) continue;
    EXPECT_EQ(taken, done);
    ++taken;
  }
  finisher.join();
  for (std::thread& adder : adders) adder.join();
  EXPECT_EQ(stage.size(), 0u);
}

}  // namespace
}  // namespace byteprophet
