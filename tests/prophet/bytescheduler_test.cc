#include "prophet/policy/bytescheduler.h"

#include <gtest/gtest.h>

#include "drain.h"
#include "prophet/registry.h"

namespace prophet {
namespace {

TEST(ByteScheduler, CreditMayGoNegativeAndIsRefundedOnAcknowledgement) {
  const auto policy = MakePolicy("bytescheduler", {{"credit_bytes", 100}});
  for (uint64_t key = 1; key <= 5; ++key) {
    policy->OnReady({.key = key, .priority = -static_cast<int32_t>(key), .bytes = 60}, 0);
  }
  EXPECT_EQ(Drain(*policy), (Keys{1, 2}));  // credit 100, 40, -20
  Ack(*policy, 1);                          // 40
  EXPECT_EQ(Drain(*policy), (Keys{3}));     // -20
  Ack(*policy, 1);                          // known no more: still -20
  EXPECT_EQ(Drain(*policy), Keys{});
  Ack(*policy, 2);
  Ack(*policy, 3);  // 100
  EXPECT_EQ(Drain(*policy), (Keys{4, 5}));
}

TEST(ByteScheduler, CreditChangesWhileMessagesAreInFlight) {
  const auto policy = MakePolicy("bytescheduler", {{"credit_bytes", 100}});
  for (uint64_t key = 1; key <= 5; ++key) {
    policy->OnReady({.key = key, .priority = -static_cast<int32_t>(key), .bytes = 60}, 0);
  }
  EXPECT_EQ(Drain(*policy), (Keys{1, 2}));
  policy->Reconfigure({{"credit_bytes", 180}});  // 60 left
  EXPECT_EQ(Drain(*policy), (Keys{3}));
  policy->Reconfigure({{"credit_bytes", 60}});  // -120
  Ack(*policy, 1);
  Ack(*policy, 2);
  EXPECT_EQ(Drain(*policy), Keys{});
  Ack(*policy, 3);
  EXPECT_EQ(Drain(*policy), (Keys{4}));
}

TEST(ByteScheduler, ZeroCreditIsNotEnough) {
  const auto policy = MakePolicy("bytescheduler", {{"credit_bytes", 100}});
  policy->OnReady({.key = 1, .priority = -1, .bytes = 100}, 0);
  policy->OnReady({.key = 2, .priority = -2, .bytes = 0}, 0);
  EXPECT_EQ(Drain(*policy), (Keys{1}));
  Ack(*policy, 1);
  EXPECT_EQ(Drain(*policy), (Keys{2}));
}

TEST(ByteScheduler, CreditIsPerServerAndAnItemLargerThanItStillGoes) {
  const auto policy = MakePolicy("bytescheduler", {{"credit_bytes", 100}});
  policy->OnReady({.key = 1, .server = 0, .priority = -1, .bytes = 1000}, 0);
  policy->OnReady({.key = 2, .server = 0, .priority = -2, .bytes = 10}, 0);
  policy->OnReady({.key = 3, .server = 1, .priority = -3, .bytes = 10}, 0);
  EXPECT_EQ(Drain(*policy), (Keys{1, 3}));
}

}  // namespace
}  // namespace prophet
