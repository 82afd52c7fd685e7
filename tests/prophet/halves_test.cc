#include "prophet/halves.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace prophet {
namespace {

using Times = std::vector<int64_t>;

TEST(Halves, ByHand) {
  // Bucket 1 has the link from 0 to 10, when bucket 0 is ready, which is more urgent; its
  // all-gather is the most urgent of all. Bucket 1's waits for the step.
  const Times ready{10, 0}, reduce{20, 30}, gather{5, 7}, reduce_place{1, 2}, gather_place{0, 3},
      after_step{0, 1};
  const HalfTimes times =
      TimesOfHalves({ready, reduce, gather, reduce_place, gather_place, after_step, 100});
  EXPECT_EQ(times.reduce_start, (Times{10, 0}));
  EXPECT_EQ(times.reduce_end, (Times{30, 55}));
  EXPECT_EQ(times.gather_start, (Times{30, 100}));
  EXPECT_EQ(times.gather_end, (Times{35, 107}));
}

TEST(Halves, WhatMakesNoSenseIsRefused) {
  const Times one{1}, two{1, 1}, negative{-1}, zero{0}, large{int64_t{1} << 61};
  EXPECT_NO_THROW(TimesOfHalves({one, one, one, zero, one, zero, 0}));
  EXPECT_THROW(TimesOfHalves({one, two, one, zero, one, zero, 0}), std::invalid_argument);
  EXPECT_THROW(TimesOfHalves({one, one, one, one, one, zero, 0}), std::invalid_argument);
  EXPECT_THROW(TimesOfHalves({one, one, one, negative, one, zero, 0}), std::invalid_argument);
  EXPECT_THROW(TimesOfHalves({negative, one, one, zero, one, zero, 0}), std::invalid_argument);
  EXPECT_THROW(TimesOfHalves({one, one, negative, zero, one, zero, 0}), std::invalid_argument);
  EXPECT_THROW(TimesOfHalves({one, large, one, zero, one, zero, 0}), std::invalid_argument);
  EXPECT_THROW(TimesOfHalves({one, one, one, zero, one, zero, -1}), std::invalid_argument);
}

}  // namespace
}  // namespace prophet
