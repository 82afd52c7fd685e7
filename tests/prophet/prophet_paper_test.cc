#include "prophet/policy/prophet_paper.h"

#include <gtest/gtest.h>

#include "drain.h"
#include "prophet/registry.h"

namespace prophet {
namespace {

constexpr int64_t kBytePerNs = 8'000'000'000;

std::unique_ptr<Policy> Make() {
  return MakePolicy("prophet-paper", {{"bandwidth_bps", kBytePerNs}});
}

// Parts of 300 bytes of a tensor with priority minus its number.
void Release(Policy& policy, uint64_t tensor, uint64_t parts, TimeNs now, uint32_t server = 0) {
  for (uint64_t part = 0; part < parts; ++part) {
    policy.OnReady({.key = Key(tensor, part),
                    .server = server,
                    .priority = -static_cast<int32_t>(tensor),
                    .bytes = 300},
                   now);
  }
}

TEST(ProphetPaper, ABlockIsWhatCanBeSentBeforeTheNextMoreUrgentRelease) {
  const auto policy = Make();
  const ReadyTime times[] = {{1, -1, 1000, 0}};
  policy->SetReadyTimes(times);
  Release(*policy, 5, 5, 0);
  EXPECT_EQ(Drain(*policy, 0), (Keys{Key(5, 0), Key(5, 1), Key(5, 2)}));  // 900 of 1000 ns
  EXPECT_EQ(Drain(*policy, 400), Keys{});
  Ack(*policy, Key(5, 0), 400);
  EXPECT_EQ(Drain(*policy, 400), Keys{});  // the block is complete
  Ack(*policy, Key(5, 1), 700);
  Ack(*policy, Key(5, 2), 950);
  EXPECT_EQ(Drain(*policy, 950), (Keys{Key(5, 3)}));  // the first of a block always goes
}

TEST(ProphetPaper, WhatBecomesReadyWhileTheBlockIsSentJoinsItIfItFits) {
  const auto policy = Make();
  const ReadyTime times[] = {{1, -1, 1000, 0}};
  policy->SetReadyTimes(times);
  Release(*policy, 5, 1, 0);
  EXPECT_EQ(Drain(*policy, 0), (Keys{Key(5)}));
  Release(*policy, 4, 4, 200);  // from 300 on: two fit
  EXPECT_EQ(Drain(*policy, 200), (Keys{Key(4, 0), Key(4, 1)}));
}

TEST(ProphetPaper, WhatIsLateIsWaitedForWithOnePartitionAtATime) {
  const auto policy = Make();
  const ReadyTime times[] = {{1, -1, 1000, 0}};
  policy->SetReadyTimes(times);
  Release(*policy, 5, 4, 0);
  EXPECT_EQ(Drain(*policy, 5000), (Keys{Key(5, 0)}));
  Ack(*policy, Key(5, 0), 5300);
  EXPECT_EQ(Drain(*policy, 5300), (Keys{Key(5, 1)}));
}

TEST(ProphetPaper, AfterBackwardOneAfterTheOtherByPriority) {
  const auto policy = Make();
  Release(*policy, 2, 2, 0);
  Release(*policy, 1, 1, 0);
  EXPECT_EQ(Drain(*policy, 0), (Keys{Key(1)}));
  const Decision wait = policy->Next(100);
  EXPECT_EQ(wait.kind, Decision::Kind::kWaitUntil);
  EXPECT_EQ(wait.ask_again_ns, 300);  // predicted, not acknowledged
  EXPECT_EQ(Drain(*policy, 300), (Keys{Key(2, 0)}));
  Ack(*policy, Key(1), 400);
  Ack(*policy, Key(2, 0), 450);  // earlier than predicted
  EXPECT_EQ(Drain(*policy, 450), (Keys{Key(2, 1)}));
}

TEST(ProphetPaper, BlocksArePerServer) {
  const auto policy = Make();
  const ReadyTime times[] = {{1, -1, 1000, 0}};
  policy->SetReadyTimes(times);
  Release(*policy, 5, 3, 0, 0);
  Release(*policy, 6, 3, 0, 1);
  // Each has half of the link: 600 ns a part.
  EXPECT_EQ(Drain(*policy, 0), (Keys{Key(5, 0), Key(6, 0)}));
}

TEST(ProphetPaper, NoBlocksWhileTheBandwidthIsNotKnown) {
  const auto policy = MakePolicy("prophet-paper");
  const ReadyTime times[] = {{1, -1, 1000, 0}};
  policy->SetReadyTimes(times);
  Release(*policy, 5, 50, 0);
  EXPECT_EQ(Drain(*policy, 0).size(), 50u);
}

TEST(ProphetPaper, UnrankedItemsGoFirstAndWaitForNothing) {
  const auto policy = Make();
  Release(*policy, 2, 2, 0);
  policy->OnReady({.key = Key(9), .priority = 0, .bytes = 300}, 0);
  policy->OnReady({.key = Key(8), .priority = 0, .bytes = 300}, 0);
  EXPECT_EQ(Drain(*policy, 0), (Keys{Key(8), Key(9)}));
  EXPECT_EQ(Drain(*policy, 600), (Keys{Key(2, 0)}));
}

}  // namespace
}  // namespace prophet
