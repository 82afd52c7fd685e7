#include "prophet/bandwidth.h"

#include <gtest/gtest.h>

namespace prophet {
namespace {

constexpr TimeNs kMs = 1'000'000;
constexpr uint64_t kHalfMiB = 1 << 19;
constexpr double kHalfMiBPerMs = static_cast<double>(kHalfMiB) / kMs;

// `count` acknowledgements of half a MiB, `gap` apart, the first at `start` plus one gap; more
// messages are in flight until the last. Returns the time of the last.
TimeNs Train(BandwidthEstimate& estimate, int count, TimeNs gap, TimeNs start) {
  for (int i = 1; i <= count; ++i) estimate.OnAcked(kHalfMiB, i < count, start + i * gap);
  return start + count * gap;
}

TEST(Bandwidth, UnknownUntilASampleIsComplete) {
  BandwidthEstimate estimate;
  Train(estimate, 2, 1 * kMs, 0);  // one span: half of a sample's bytes
  EXPECT_FALSE(estimate.bytes_per_ns());
  Train(estimate, 2, 1 * kMs, 50 * kMs);  // the other half, in another busy interval
  EXPECT_DOUBLE_EQ(estimate.bytes_per_ns().value(), kHalfMiBPerMs);
}

TEST(Bandwidth, IdleTimeAndFirstDelaysDoNotCount) {
  BandwidthEstimate estimate;
  TimeNs now = 0;
  for (int interval = 0; interval < 10; ++interval)
    now = Train(estimate, 4, 2 * kMs, now + 70 * kMs);
  EXPECT_DOUBLE_EQ(estimate.bytes_per_ns().value(), kHalfMiBPerMs / 2);
}

TEST(Bandwidth, OneMessageAtATimeTellsNothing) {
  BandwidthEstimate estimate;
  for (int i = 0; i < 100; ++i) estimate.OnAcked(kHalfMiB, false, i * kMs);
  EXPECT_FALSE(estimate.bytes_per_ns());
}

TEST(Bandwidth, OneStallDoesNotMoveIt) {
  BandwidthEstimate estimate;
  TimeNs now = Train(estimate, 40, 1 * kMs, 0);
  estimate.OnAcked(kHalfMiB, true, now += kMs);
  estimate.OnAcked(kHalfMiB, true, now += 900 * kMs);
  Train(estimate, 4, 1 * kMs, now);
  EXPECT_DOUBLE_EQ(estimate.bytes_per_ns().value(), kHalfMiBPerMs);
}

TEST(Bandwidth, FollowsAChangedLinkWithinItsMemory) {
  BandwidthEstimate estimate;
  const TimeNs now = Train(estimate, 100, 1 * kMs, 0);
  Train(estimate, 12, 5 * kMs, now);
  EXPECT_DOUBLE_EQ(estimate.bytes_per_ns().value(), kHalfMiBPerMs / 5);
}

TEST(Bandwidth, SimultaneousAcknowledgementsAreNotInfinite) {
  BandwidthEstimate estimate;
  for (int i = 0; i < 64; ++i) estimate.OnAcked(kHalfMiB, true, 0);
  EXPECT_FALSE(estimate.bytes_per_ns());
}

}  // namespace
}  // namespace prophet
