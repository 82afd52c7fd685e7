#include "prophet/policy/delay.h"

#include <gtest/gtest.h>

namespace prophet {
namespace {

TEST(DelayEstimate, IsTheShortest) {
  DelayEstimate delay;
  EXPECT_EQ(delay.shortest_ns(), std::nullopt);
  for (const TimeNs delay_ns : {500, 300, 900}) delay.OnAcked(delay_ns);
  EXPECT_EQ(delay.shortest_ns(), 300);
}

TEST(DelayEstimate, FollowsAPathThatBecameLonger) {
  DelayEstimate delay;
  delay.OnAcked(10);
  for (int message = 1; message < 2 * DelayEstimate::kPeriodMessages; ++message) {
    EXPECT_EQ(delay.shortest_ns(), 10);
    delay.OnAcked(400);
  }
  EXPECT_EQ(delay.shortest_ns(), 400);
}

}  // namespace
}  // namespace prophet
