#include "prophet/policy/queues.h"

#include <gtest/gtest.h>

namespace prophet {
namespace {

constexpr auto kAlways = [](const Item&, const ServerLoad&) { return true; };

TEST(Queues, BestRankOverServersThenSmallerKey) {
  Queues queues;
  queues.Add({.key = 5, .server = 1}, 7);
  queues.Add({.key = 4, .server = 0}, 7);
  queues.Add({.key = 9, .server = 2}, 3);
  EXPECT_EQ(queues.TakeFirst(kAlways)->key, 9u);
  EXPECT_EQ(queues.TakeFirst(kAlways)->key, 4u);
  EXPECT_EQ(queues.TakeFirst(kAlways)->key, 5u);
  EXPECT_FALSE(queues.TakeFirst(kAlways));
}

TEST(Queues, AClosedHeadHoldsItsOwnServerOnly) {
  Queues queues;
  queues.Add({.key = 1, .server = 0}, 0);
  queues.Add({.key = 2, .server = 0}, 1);
  queues.Add({.key = 3, .server = 1}, 2);
  const auto not_key_1 = [](const Item& head, const ServerLoad&) { return head.key != 1; };
  EXPECT_EQ(queues.TakeFirst(not_key_1)->key, 3u);
  EXPECT_FALSE(queues.TakeFirst(not_key_1));
  EXPECT_EQ(queues.pending(), 2u);
}

TEST(Queues, LoadCountsWhatIsInFlight) {
  Queues queues;
  queues.Add({.key = 1, .server = 3, .bytes = 10}, 0);
  queues.Add({.key = 2, .server = 3, .bytes = 20}, 1);
  EXPECT_EQ(queues.load(3).messages, 0u);
  queues.TakeFirst(kAlways);
  queues.TakeFirst(kAlways);
  EXPECT_EQ(queues.load(3).messages, 2u);
  EXPECT_EQ(queues.load(3).bytes, 30u);
  EXPECT_EQ(queues.Ack(1)->bytes, 10u);
  EXPECT_EQ(queues.load(3).bytes, 20u);
  EXPECT_FALSE(queues.Ack(1));
  EXPECT_EQ(queues.load(3).messages, 1u);
  EXPECT_EQ(queues.load(99).messages, 0u);
}

TEST(Queues, ServersWithWork) {
  Queues queues;
  EXPECT_EQ(queues.active_servers(), 0u);
  queues.Add({.key = 1, .server = 0}, 0);
  queues.Add({.key = 2, .server = 1}, 0);
  EXPECT_EQ(queues.active_servers(), 2u);
  queues.TakeFirst(kAlways);
  EXPECT_EQ(queues.active_servers(), 2u);  // one in flight, one pending
  queues.Ack(1);
  EXPECT_EQ(queues.active_servers(), 1u);
}

TEST(Queues, AKeyGivenTwiceIsSentTwice) {
  Queues queues;
  queues.Add({.key = 1, .bytes = 5}, 0);
  queues.Add({.key = 1, .bytes = 7}, 0);
  EXPECT_TRUE(queues.TakeFirst(kAlways));
  EXPECT_TRUE(queues.TakeFirst(kAlways));
  EXPECT_EQ(queues.load(0).bytes, 12u);
  EXPECT_TRUE(queues.Ack(1));
  EXPECT_TRUE(queues.Ack(1));
  EXPECT_FALSE(queues.Ack(1));
  EXPECT_EQ(queues.load(0).bytes, 0u);
}

}  // namespace
}  // namespace prophet
