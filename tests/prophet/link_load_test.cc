#include "prophet/policy/link_load.h"

#include <gtest/gtest.h>

namespace prophet {
namespace {

TEST(LinkLoad, CountsWhatWasSentUntilItIsAcknowledged) {
  LinkLoad load;
  EXPECT_EQ(load.BelowAt(1), 0);
  load.OnSent(1, 100, 50);
  load.OnSent(2, 10, 40);
  EXPECT_EQ(load.bytes(), 110u);
  EXPECT_EQ(load.BelowAt(111), 0);
  EXPECT_EQ(load.BelowAt(110), 40);
  EXPECT_EQ(load.BelowAt(100), 50);
  load.OnAcked(2);
  load.OnAcked(2);
  load.OnAcked(77);
  EXPECT_EQ(load.bytes(), 100u);
  EXPECT_EQ(load.BelowAt(1), 50);
}

TEST(LinkLoad, WhatIsOverdueCountsNoMore) {
  LinkLoad load;
  load.OnSent(1, 100, 50);
  load.OnSent(2, 10, 40);
  load.OnSent(3, 1, 50);
  load.Expire(39);
  EXPECT_EQ(load.bytes(), 111u);
  load.Expire(40);
  EXPECT_EQ(load.bytes(), 101u);
  load.OnAcked(2);  // comes all the same
  EXPECT_EQ(load.bytes(), 101u);
  load.Expire(1000);
  EXPECT_EQ(load.bytes(), 0u);
}

TEST(LinkLoad, AKeyGivenTwiceCountsOnce) {
  LinkLoad load;
  load.OnSent(1, 100, 50);
  load.OnSent(1, 30, 60);
  EXPECT_EQ(load.bytes(), 30u);
  load.OnAcked(1);
  EXPECT_EQ(load.bytes(), 0u);
}

}  // namespace
}  // namespace prophet
