#include "prophet/policy/p3.h"

#include <gtest/gtest.h>

#include "drain.h"
#include "prophet/registry.h"

namespace prophet {
namespace {

TEST(P3, TwoOutstandingPerServerMostUrgentFirst) {
  const auto policy = MakePolicy("p3", {{"outstanding_messages", 2}});
  for (uint64_t key = 1; key <= 4; ++key) {
    policy->OnReady({.key = key, .server = 0, .priority = static_cast<int32_t>(key) - 10}, 0);
  }
  policy->OnReady({.key = 9, .server = 1, .priority = -20}, 0);
  EXPECT_EQ(Drain(*policy), (Keys{4, 3, 9}));
  Ack(*policy, 3);
  policy->OnReady({.key = 7, .server = 0, .priority = -1}, 0);
  EXPECT_EQ(Drain(*policy), (Keys{7}));
  Ack(*policy, 9);  // the other server's
  EXPECT_EQ(Drain(*policy), Keys{});
  Ack(*policy, 4);
  EXPECT_EQ(Drain(*policy), (Keys{2}));
}

TEST(P3, EqualPrioritiesSmallerKeyFirst) {
  const auto policy = MakePolicy("p3", {{"outstanding_messages", 3}});
  for (const uint64_t key : {8u, 2u, 5u}) policy->OnReady({.key = key, .priority = -1}, 0);
  EXPECT_EQ(Drain(*policy), (Keys{2, 5, 8}));
}

TEST(P3, UnknownAcknowledgementsChangeNothing) {
  const auto policy = MakePolicy("p3", {{"outstanding_messages", 1}});
  policy->OnReady({.key = 1, .priority = -1}, 0);
  policy->OnReady({.key = 2, .priority = -2}, 0);
  EXPECT_EQ(Drain(*policy), (Keys{1}));
  Ack(*policy, 2);  // pending, not in flight
  Ack(*policy, 77);
  EXPECT_EQ(Drain(*policy), Keys{});
  Ack(*policy, 1);
  EXPECT_EQ(Drain(*policy), (Keys{2}));
}

}  // namespace
}  // namespace prophet
