#include "flow.h"

#include <gtest/gtest.h>

namespace byteprophet {
namespace {

constexpr double kBytesPerNs = 0.125;  // 1 Gbit/s
constexpr int64_t kRoundTripNs = 1'000'000;

TcpReading Reading(uint64_t acked_bytes, uint64_t queued_bytes) {
  return {acked_bytes, queued_bytes, kBytesPerNs, kRoundTripNs};
}

TEST(Flow, WhatWasHandedOverIsOutstandingUntilItIsAcknowledged) {
  Flow flow;
  flow.OnReading(Reading(5000, 0), 0);  // an older connection
  flow.OnHanded(3000, 0);
  flow.OnReading(Reading(5000, 0), 1);  // ZeroMQ has not written it yet
  EXPECT_EQ(flow.outstanding_bytes(), 3000u);
  flow.OnReading(Reading(6000, 2000), 2);
  EXPECT_EQ(flow.outstanding_bytes(), 2000u);
  flow.OnReading(Reading(8000, 0), 3);
  EXPECT_EQ(flow.outstanding_bytes(), 0u);
}

TEST(Flow, TheWindowCoversARoundTripAndTheTimeToTheNextLook) {
  Flow flow;
  EXPECT_EQ(flow.window_bytes(), Flow::kFloorBytes);
  flow.OnReading(Reading(0, 0), 0);
  EXPECT_EQ(flow.window_bytes(), Flow::kFloorBytes + 250'000);
  // A slow moment does not close it at once, a lasting one does.
  TcpReading slow = Reading(0, 0);
  slow.bytes_per_ns /= 2;
  for (size_t i = 1; i < Flow::kRates; ++i) flow.OnReading(slow, 0);
  EXPECT_EQ(flow.window_bytes(), Flow::kFloorBytes + 250'000);
  flow.OnReading(slow, 0);
  EXPECT_EQ(flow.window_bytes(), Flow::kFloorBytes + 125'000);
}

TEST(Flow, MaySendUntilTheWindowIsFull) {
  Flow flow;
  flow.OnReading(Reading(0, 0), 0);
  flow.OnHanded(flow.window_bytes() - 1, 0);
  EXPECT_TRUE(flow.may_send());
  flow.OnHanded(1, 0);
  EXPECT_FALSE(flow.may_send());
  // Half the window takes longer than the slack.
  EXPECT_EQ(flow.ask_again_ns(), Flow::kSlackNs);
  flow.OnReading(Reading(150'000, 0), 1);
  EXPECT_EQ(flow.ask_again_ns(), 200'000);
}

TEST(Flow, HeadersDoNotAddUp) {
  Flow flow;
  uint64_t acked = 0;
  for (int message = 0; message < 1000; ++message) {
    flow.OnHanded(1000, 0);
    acked += 1100;
    flow.OnReading(Reading(acked, 0), 0);
    ASSERT_EQ(flow.outstanding_bytes(), 0u);
  }
  flow.OnHanded(1000, 0);
  EXPECT_EQ(flow.outstanding_bytes(), 1000u);
}

TEST(Flow, ARestingOrAnotherConnectionStartsAnew) {
  Flow flow;
  flow.OnHanded(1000, 0);
  flow.OnReading(Reading(0, 0), Flow::kRestNs + 1);  // lost, or never to come
  EXPECT_EQ(flow.outstanding_bytes(), 0u);
  flow.OnHanded(1000, Flow::kRestNs);
  flow.OnReading(Reading(900, 100), Flow::kRestNs + 1);
  EXPECT_EQ(flow.outstanding_bytes(), 100u);
  flow.OnReading(Reading(10, 0), Flow::kRestNs + 2);
  EXPECT_EQ(flow.outstanding_bytes(), 0u);
}

}  // namespace
}  // namespace byteprophet
