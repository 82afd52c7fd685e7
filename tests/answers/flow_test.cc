#include "flow.h"

#include <gtest/gtest.h>

namespace byteprophet {
namespace {

TcpReading Reading(uint64_t acked_bytes, uint64_t queued_bytes) {
  return {acked_bytes, queued_bytes};
}

// As long as a sample of the rate takes, with something always outstanding.
void Deliver(Flow& flow, uint64_t& acked_bytes, int64_t& now_ns, uint64_t bytes_per_ms) {
  constexpr int64_t kMilliseconds = Flow::kSampleNs / 1'000'000;
  flow.OnHanded(bytes_per_ms * kMilliseconds, now_ns);
  flow.OnReading(Reading(acked_bytes, 1), now_ns);
  acked_bytes += bytes_per_ms * kMilliseconds;
  now_ns += Flow::kSampleNs;
  flow.OnReading(Reading(acked_bytes, 1), now_ns);
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

TEST(Flow, TheWindowCoversTheWayBackAndTheTimeToTheNextLook) {
  Flow flow;
  uint64_t acked = 0;
  int64_t now = 0;
  EXPECT_EQ(flow.window_bytes(), Flow::kFloorBytes);
  Deliver(flow, acked, now, 125'000);
  EXPECT_EQ(flow.window_bytes(), Flow::kFloorBytes + 125'000);
  // A slow moment does not close it at once, a lasting one does.
  for (size_t i = 1; i < Flow::kRates; ++i) Deliver(flow, acked, now, 50'000);
  EXPECT_EQ(flow.window_bytes(), Flow::kFloorBytes + 125'000);
  Deliver(flow, acked, now, 50'000);
  EXPECT_EQ(flow.window_bytes(), Flow::kFloorBytes + 50'000);
}

TEST(Flow, ARestIsNotPartOfTheRate) {
  Flow flow;
  uint64_t acked = 0;
  int64_t now = 0;
  for (size_t i = 0; i < Flow::kRates; ++i) {
    Deliver(flow, acked, now, 125'000);
    flow.OnReading(Reading(acked, 0), now);
    now += 5 * Flow::kSampleNs;
  }
  EXPECT_EQ(flow.window_bytes(), Flow::kFloorBytes + 125'000);
}

TEST(Flow, MaySendUntilTheWindowIsFull) {
  Flow flow;
  uint64_t acked = 0;
  int64_t now = 0;
  Deliver(flow, acked, now, 125'000);
  flow.OnHanded(flow.window_bytes() - 1, now);
  EXPECT_TRUE(flow.may_send());
  flow.OnHanded(1, now);
  EXPECT_FALSE(flow.may_send());
  // Half the window takes longer than the slack.
  EXPECT_EQ(flow.ask_again_ns(), Flow::kSlackNs);
  acked += flow.window_bytes() / 2 - 10'000;
  flow.OnReading(Reading(acked, 0), now + 1);
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
