#include "exchange/meter.h"

#include <gtest/gtest.h>

namespace byteprophet::exchange {
namespace {

TEST(Meter, CountsWhatTheLinkCarriedWhileThereWasSomethingToGo) {
  Meter meter;
  meter.SetBusy(true, 300);
  meter.AddBytes(1'000);
  meter.SetBusy(false, 500);
  meter.AddBytes(70);  // an idle link says nothing
  const Traffic traffic = meter.Read();
  EXPECT_EQ(traffic.payload_bytes, 1'070U);
  EXPECT_EQ(traffic.carried_bytes, 800U);
  EXPECT_GT(traffic.carrying_ns, 0);
  EXPECT_EQ(traffic.carrying_ns, traffic.busy_ns);
}

TEST(Meter, LeavesOutTimesInWhichTheKernelTookMoreThanTheLinkCarried) {
  Meter meter;
  meter.SetBusy(true, 0);
  meter.AddBytes(1'000);
  meter.SetBusy(false, 501);
  const Traffic traffic = meter.Read();
  EXPECT_GT(traffic.busy_ns, 0);
  EXPECT_EQ(traffic.carried_bytes, 0U);
  EXPECT_EQ(traffic.carrying_ns, 0);
}

TEST(Meter, ReadsATimeThatHasNotEnded) {
  Meter meter;
  meter.SetBusy(true, 100);
  meter.AddBytes(1'000);
  const Traffic early = meter.Read();
  meter.AddBytes(5'000);
  meter.SetBusy(true, 0);  // no change
  const Traffic late = meter.Read();
  EXPECT_EQ(late.carried_bytes - early.carried_bytes, 5'000U);
  EXPECT_GT(late.carrying_ns, early.carrying_ns);
  meter.SetBusy(false, 50);
  EXPECT_EQ(meter.Read().carried_bytes, 6'050U);
}

}  // namespace
}  // namespace byteprophet::exchange
