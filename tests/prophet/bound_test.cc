// Cases worked by hand, and refusals. The property test against an independent simulation is in
// tests/bindings/test_bound.py.
#include "prophet/bound.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace prophet {
namespace {

using List = std::vector<int64_t>;
constexpr int64_t kBytePerNs = 8'000'000'000;

TEST(Bound, ComputeAloneWithoutTensors) {
  EXPECT_EQ(IterationBoundNs({.backward_ns = 7}), 7);
  EXPECT_EQ(IterationBoundNs({.backward_ns = 7, .bandwidth_bps = 1}), 7);
}

TEST(Bound, WithoutABandwidthOnlyComputeCounts) {
  const List size{1000, 1000}, ready{10, 4}, forward{3, 5};
  EXPECT_EQ(IterationBoundNs({size, ready, forward, 10, std::nullopt}), 18);
  const List late{10, 40};  // ready after backward, as measured profiles sometimes say
  EXPECT_EQ(IterationBoundNs({size, late, forward, 10, std::nullopt}), 45);
}

TEST(Bound, TheUrgentTensorPreemptsAndTheBulkFillsTheRest) {
  // Tensor 1: 100 bytes from 0. Tensor 0: 10 bytes from 50. Link busy to 110; 0 is there at 60.
  const List size{10, 100}, ready{50, 0}, forward{20, 30};
  EXPECT_EQ(IterationBoundNs({size, ready, forward, 50, kBytePerNs}), 110 + 30);
  const List long_forward{90, 30};
  EXPECT_EQ(IterationBoundNs({size, ready, long_forward, 50, kBytePerNs}), 60 + 90 + 30);
}

TEST(Bound, AnIdleGapIsNotFilledWithLaterWork) {
  const List size{10, 10}, ready{100, 0}, forward{1, 1};
  EXPECT_EQ(IterationBoundNs({size, ready, forward, 100, kBytePerNs}), 110 + 2);
}

TEST(Bound, EqualReleasesAddUp) {
  const List size{10, 20, 30}, ready{5, 5, 5}, forward{0, 0, 1};
  EXPECT_EQ(IterationBoundNs({size, ready, forward, 5, kBytePerNs}), 65 + 1);
}

TEST(Bound, RoundsDownOnce) {
  const List size{1, 1, 1}, ready{0, 0, 0}, forward{0, 0, 0};
  // Three bytes at 7 bit/s: 24/7 s.
  EXPECT_EQ(IterationBoundNs({size, ready, forward, 0, 7}), 3'428'571'428);
}

TEST(Bound, ServersInTotal) {
  const List size{700}, ready{0}, forward{1};
  BoundInput input{size, ready, forward, 1, kBytePerNs, 4, 2, kBytePerNs};
  EXPECT_EQ(IterationBoundNs(input), 1400);
  input.server_bandwidth_bps = 4 * kBytePerNs;
  EXPECT_EQ(IterationBoundNs(input), 701);
  input.bandwidth_bps.reset();
  EXPECT_EQ(IterationBoundNs(input), 350);
}

TEST(Bound, NumbersOfRealJobsDoNotOverflow) {
  const List size(2000, int64_t{1} << 32), ready(2000, 3'600'000'000'000), forward(2000, 1 << 30);
  const int64_t fast = 100'000'000'000'000;
  EXPECT_EQ(IterationBoundNs({size, ready, forward, 3'600'000'000'000, fast}),
            3'600'000'000'000 + 2000 * (int64_t{1} << 30) + 343'597);
}

TEST(Bound, Refusals) {
  const List one{1}, two{1, 1}, negative{-1}, huge{int64_t{1} << 62};
  EXPECT_THROW(IterationBoundNs({one, two, one, 0, 1}), std::invalid_argument);
  EXPECT_THROW(IterationBoundNs({one, one, two, 0, 1}), std::invalid_argument);
  EXPECT_THROW(IterationBoundNs({negative, one, one, 0, 1}), std::invalid_argument);
  EXPECT_THROW(IterationBoundNs({one, negative, one, 0, 1}), std::invalid_argument);
  EXPECT_THROW(IterationBoundNs({one, one, negative, 0, 1}), std::invalid_argument);
  EXPECT_THROW(IterationBoundNs({one, one, one, -1, 1}), std::invalid_argument);
  EXPECT_THROW(IterationBoundNs({one, one, one, 0, 0}), std::invalid_argument);
  EXPECT_THROW(IterationBoundNs({one, one, one, 0, 1, 0}), std::invalid_argument);
  EXPECT_THROW(IterationBoundNs({one, one, one, 0, 1, 1, 0}), std::invalid_argument);
  EXPECT_THROW(IterationBoundNs({one, one, one, 0, 1, 1, 1, 0}), std::invalid_argument);
  EXPECT_THROW(IterationBoundNs({huge, one, one, 0, 1}), std::invalid_argument);
  EXPECT_THROW(IterationBoundNs({one, huge, one, 0, 1}), std::invalid_argument);
  const List large{int64_t{1} << 40};
  EXPECT_THROW(IterationBoundNs({large, one, one, 0, 1}), std::invalid_argument);
}

}  // namespace
}  // namespace prophet
