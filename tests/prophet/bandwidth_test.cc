#include "prophet/policy/bandwidth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

namespace prophet {
namespace {

constexpr TimeNs kMs = 1'000'000;
constexpr uint64_t kMiB = 1 << 20;
constexpr double kMiBPerMs = static_cast<double>(kMiB) / kMs;

// `count` acknowledgements of one MiB, `gap` apart, the first at `start` plus one gap, all sent at
// `start`; more messages are in flight until the last. Returns the time of the last.
TimeNs Train(BandwidthEstimate& estimate, int count, TimeNs gap, TimeNs start) {
  for (int i = 1; i <= count; ++i) estimate.OnAcked(kMiB, start, i < count, start + i * gap);
  return start + count * gap;
}

TEST(Bandwidth, UnknownUntilASampleIsComplete) {
  BandwidthEstimate estimate;
  Train(estimate, 2, 1 * kMs, 0);  // one span: half of a sample's bytes
  EXPECT_FALSE(estimate.bytes_per_ns());
  Train(estimate, 2, 1 * kMs, 50 * kMs);  // the other half, in another busy interval
  EXPECT_DOUBLE_EQ(estimate.bytes_per_ns().value(), kMiBPerMs);
}

TEST(Bandwidth, IdleTimeAndFirstDelaysDoNotCount) {
  BandwidthEstimate estimate;
  TimeNs now = 0;
  for (int interval = 0; interval < 10; ++interval)
    now = Train(estimate, 4, 2 * kMs, now + 70 * kMs);
  EXPECT_DOUBLE_EQ(estimate.bytes_per_ns().value(), kMiBPerMs / 2);
}

TEST(Bandwidth, OneMessageAtATimeTellsNothing) {
  BandwidthEstimate estimate;
  for (int i = 0; i < 100; ++i) estimate.OnAcked(kMiB, i * kMs, false, (i + 1) * kMs);
  EXPECT_FALSE(estimate.bytes_per_ns());
}

TEST(Bandwidth, OneStallDoesNotMoveIt) {
  BandwidthEstimate estimate;
  TimeNs now = Train(estimate, 40, 1 * kMs, 0);
  const TimeNs sent = now;
  estimate.OnAcked(kMiB, sent, true, now += kMs);
  estimate.OnAcked(kMiB, sent, true, now += 900 * kMs);
  Train(estimate, 4, 1 * kMs, now);
  EXPECT_DOUBLE_EQ(estimate.bytes_per_ns().value(), kMiBPerMs);
}

TEST(Bandwidth, FollowsAChangedLinkWithinItsMemory) {
  BandwidthEstimate estimate;
  TimeNs now = Train(estimate, 100, 1 * kMs, 0);
  now = Train(estimate, 20, 5 * kMs, now);
  EXPECT_DOUBLE_EQ(estimate.bytes_per_ns().value(), kMiBPerMs / 5);
  Train(estimate, 20, 1 * kMs, now);
  EXPECT_DOUBLE_EQ(estimate.bytes_per_ns().value(), kMiBPerMs);
}

TEST(Bandwidth, FollowsASlowLinkWithinTwoSecondsOfTraffic) {
  BandwidthEstimate estimate;
  const TimeNs now = Train(estimate, 100, 1 * kMs, 0);
  Train(estimate, 10, 200 * kMs, now);
  EXPECT_DOUBLE_EQ(estimate.bytes_per_ns().value(), kMiBPerMs / 200);
}

TEST(Bandwidth, SimultaneousAcknowledgementsAreNotInfinite) {
  BandwidthEstimate estimate;
  for (int i = 0; i < 64; ++i) estimate.OnAcked(kMiB, 0, true, 0);
  EXPECT_FALSE(estimate.bytes_per_ns());
}

// Two messages at a time over a path with a long delay, with a pause after each hundred: the link
// is idle most of the time. The first after a pause is small, or not.
double TwoAtATime(TimeNs bytes_ns, TimeNs delay_ns, bool small_first) {
  BandwidthEstimate estimate;
  TimeNs now = 0, free = 0;
  struct Message {
    uint64_t bytes;
    TimeNs sent, acked;
  };
  std::deque<Message> in_flight;
  const auto send = [&](bool small) {
    free = std::max(free, now) + (small ? bytes_ns / 1024 : bytes_ns);
    in_flight.push_back({small ? kMiB / 1024 : kMiB, now, free + delay_ns});
  };
  const auto take = [&] {
    const Message first = in_flight.front();
    in_flight.pop_front();
    now = first.acked;
    estimate.OnAcked(first.bytes, first.sent, !in_flight.empty(), now);
  };
  for (int iteration = 0; iteration < 40; ++iteration) {
    send(small_first);
    for (int i = 1; i < 100; ++i) {
      send(false);
      take();
    }
    take();
    now += 50 * kMs;
  }
  return estimate.bytes_per_ns().value() * static_cast<double>(bytes_ns) / kMiB;
}

TEST(Bandwidth, AWindowThatIsTooSmallForThePathDoesNotHideTheLink) {
  EXPECT_NEAR(TwoAtATime(1 * kMs, 1 * kMs, true), 1.0, 0.05);
  EXPECT_NEAR(TwoAtATime(1 * kMs, 10 * kMs, true), 1.0, 0.05);
}

TEST(Bandwidth, WithLargeMessagesAloneItIsNeverTooHigh) {
  for (const TimeNs delay_ns : {kMs / 10, kMs, 3 * kMs, 10 * kMs}) {
    EXPECT_LE(TwoAtATime(1 * kMs, delay_ns, false), 1.01) << delay_ns;
  }
}

TEST(Bandwidth, MessagesWithoutBytesTellNothing) {
  BandwidthEstimate estimate;
  constexpr TimeNs kSecondNs = 1'000'000'000;
  for (TimeNs now = kSecondNs; now < 100 * kSecondNs; now += kSecondNs) {
    estimate.OnAcked(0, now - kSecondNs, true, now);
  }
  EXPECT_EQ(estimate.bytes_per_ns(), std::nullopt);
}

}  // namespace
}  // namespace prophet
