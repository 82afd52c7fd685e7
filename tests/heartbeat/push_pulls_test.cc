#include "push_pulls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace byteprophet {
namespace {

class PushPullsTest : public testing::Test {
 protected:
  bool Begin(uint64_t operation) {
    return push_pulls_.Begin(operation, [this, operation](const std::string& why) {
      EXPECT_TRUE(failed_.insert(operation).second);
      why_ = why;
    });
  }

  PushPulls push_pulls_;
  std::set<uint64_t> failed_;
  std::string why_;
};

TEST_F(PushPullsTest, WhatTheOtherTookPartInIsAwaited) {
  for (uint64_t operation = 0; operation < 3; ++operation) ASSERT_TRUE(Begin(operation));
  push_pulls_.HasLeft(3, "worker-1 has finished");
  for (const uint64_t operation : {2, 0, 1}) EXPECT_TRUE(push_pulls_.End(operation));
  EXPECT_TRUE(failed_.empty());
  EXPECT_TRUE(push_pulls_.Hopeless());  // what would begin now
}

TEST_F(PushPullsTest, WhatIsBeyondFailsOnceTheRestIsThere) {
  for (uint64_t operation = 0; operation < 4; ++operation) ASSERT_TRUE(Begin(operation));
  push_pulls_.HasLeft(2, "worker-1 has finished");
  EXPECT_TRUE(push_pulls_.End(3));
  EXPECT_TRUE(failed_.empty());
  EXPECT_TRUE(push_pulls_.End(1));
  EXPECT_EQ(failed_, (std::set<uint64_t>{0, 2}));
  EXPECT_EQ(why_,
            "worker-1 has finished after 2 push_pulls and takes no part in this one: all workers "
            "must make as many, so each needs as many batches");
  EXPECT_FALSE(push_pulls_.End(0));
  EXPECT_FALSE(Begin(4));
  EXPECT_TRUE(failed_.count(4));
  EXPECT_THROW(push_pulls_.ThrowIfHopeless(), std::logic_error);
}

TEST_F(PushPullsTest, ItMayBeKnownLateAndOfSeveral) {
  ASSERT_TRUE(Begin(0));
  EXPECT_TRUE(push_pulls_.End(0));
  ASSERT_TRUE(Begin(1));
  push_pulls_.HasLeft(2, "worker-2 has finished");
  EXPECT_TRUE(failed_.empty());
  push_pulls_.HasLeft(1, "worker-1 has finished");
  EXPECT_TRUE(failed_.count(1));
  push_pulls_.HasLeft(2, "worker-2 has finished");
  EXPECT_NE(why_.find("worker-1"), std::string::npos);
}

TEST_F(PushPullsTest, WhoLeavesSaysHowManyItHasBegun) {
  EXPECT_FALSE(push_pulls_.departure());
  ASSERT_TRUE(Begin(0) && Begin(1));
  push_pulls_.End(1);
  push_pulls_.Leave(true);
  EXPECT_EQ(push_pulls_.departure()->operations, 2u);
  EXPECT_TRUE(push_pulls_.departure()->suspends);
}

TEST_F(PushPullsTest, AnotherJobBeginsAnew) {
  push_pulls_.HasLeft(0, "worker-1 has finished");
  push_pulls_.Leave(false);
  push_pulls_.Reset();
  EXPECT_FALSE(push_pulls_.departure());
  ASSERT_TRUE(Begin(0));
  push_pulls_.HasLeft(1, "worker-1 has finished");
  EXPECT_TRUE(push_pulls_.End(0));
  EXPECT_TRUE(failed_.empty());
}

// Every operation ends or fails, once, whoever notices.
TEST(PushPulls, OfSeveralThreads) {
  constexpr uint64_t kThreads = 4, kEach = 2000, kShared = 3000;
  PushPulls push_pulls;
  std::atomic<uint64_t> ended{0}, failed{0};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&, thread] {
      for (uint64_t i = 0; i < kEach; ++i) {
        const uint64_t operation = thread * kEach + i;
        push_pulls.Begin(operation, [&](const std::string&) { ++failed; });
        if (push_pulls.End(operation)) ++ended;
      }
    });
  threads.emplace_back([&] {
    for (int i = 0; i < 100; ++i) push_pulls.HasLeft(kShared, "worker-1 has finished");
  });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(ended + failed, kThreads * kEach);
  EXPECT_GE(ended, kShared);
}

TEST(Preparation, IsWaitedForButNotForGood) {
  std::atomic<bool> ready{false}, over{false};
  std::thread preparing([&] {
    const Preparation preparation;
    ready = true;
    while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  while (!ready) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  Preparation::WaitForAll();  // gives up
  over = true;
  Preparation::WaitForAll();
  preparing.join();
}

}  // namespace
}  // namespace byteprophet
