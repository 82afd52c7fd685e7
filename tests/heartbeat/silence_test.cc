#include "silence.h"

#include <gtest/gtest.h>

namespace byteprophet {
namespace {

const std::string kSelf = "scheduler (10.0.0.1)";
constexpr Limits kLimits{12, 600};

// Two workers, 1 and 2, and a server, 3. `Run` lets time pass in half seconds; those of `alive`
// send a beat every second.
class RollTest : public testing::Test {
 protected:
  void Hear(uint64_t sender) {
    roll_.Heard(sender, sender < 3, sender < 3 ? "worker-" + std::to_string(sender) : "server-0");
  }

  std::optional<std::string> Run(double time_s, std::initializer_list<uint64_t> alive) {
    for (int step = 1; step <= 2 * time_s; ++step) {
      if (step % 2 == 1)
        for (const auto sender : alive) Hear(sender);
      if (const auto lost = roll_.Pass(0.5)) return lost;
    }
    return std::nullopt;
  }

  void Register(int workers) {
    for (int i = 0; i < workers; ++i) roll_.Registered(true);
    roll_.Registered(false);
  }

  Roll roll_{kSelf, 2, 1, kLimits};
};

TEST_F(RollTest, NobodyIsMissedWhoIsHeard) {
  ASSERT_EQ(Run(10, {1, 2, 3}), std::nullopt);
  Register(2);
  EXPECT_EQ(Run(10000, {1, 2, 3}), std::nullopt);
}

TEST_F(RollTest, TheSilentOneIsNamed) {
  ASSERT_EQ(Run(60, {1, 2, 3}), std::nullopt);
  ASSERT_EQ(Run(10.5, {1, 3}), std::nullopt);
  EXPECT_EQ(Run(2, {1, 3}), "worker-2 has been silent for 12 s: the job cannot go on");
}

TEST_F(RollTest, OfThoseThatHaveLeftTheOneWithTheFewestOperationsIsNamed) {
  Hear(1);
  EXPECT_FALSE(roll_.Left());
  roll_.Heard(1, true, "worker-1", Departure{9, false});
  EXPECT_EQ(roll_.Left()->operations, 9u);
  EXPECT_EQ(roll_.Left()->who, "worker-1 has finished");
  roll_.Heard(2, true, "worker-2", Departure{4, true});
  EXPECT_EQ(roll_.Left()->operations, 4u);
  EXPECT_EQ(roll_.Left()->who, "worker-2 has called suspend()");
}

TEST_F(RollTest, WhoComesBackInTimeIsNotLost) {
  ASSERT_EQ(Run(60, {1, 2, 3}), std::nullopt);
  ASSERT_EQ(Run(10.5, {1, 3}), std::nullopt);
  EXPECT_EQ(Run(10.5, {1, 2, 3}), std::nullopt);
  EXPECT_EQ(Run(10.5, {1, 3}), std::nullopt);
}

TEST_F(RollTest, AllThatFallSilentTogetherAreNamed) {
  ASSERT_EQ(Run(60, {1, 2, 3}), std::nullopt);
  Hear(1);
  roll_.Pass(0.9);
  Hear(3);  // its last beat comes later than that of the other
  EXPECT_EQ(Run(20, {2}), "server-0 and worker-1 have been silent for 12 s: the job cannot go on");
}

TEST_F(RollTest, WhoHearsNobodyDoesNotBlameTheOthers) {
  ASSERT_EQ(Run(60, {1, 2, 3}), std::nullopt);
  const auto lost = Run(20, {});
  ASSERT_TRUE(lost);
  EXPECT_TRUE(lost->starts_with(kSelf + " has heard from nobody for 12 s")) << *lost;
}

TEST_F(RollTest, AWatcherThatSleptDoesNotBlameTheOthers) {
  ASSERT_EQ(Run(60, {1, 2, 3}), std::nullopt);
  EXPECT_EQ(roll_.Pass(3600), std::nullopt);
  EXPECT_EQ(Run(60, {1, 2, 3}), std::nullopt);
}

TEST_F(RollTest, WhoDoesNotComeIsMissedButNotTooEarly) {
  ASSERT_EQ(Run(599, {1, 3}), std::nullopt);
  EXPECT_EQ(Run(2, {1, 3}), kSelf +
                                " waited 600 s for all to register: 1 of 2 workers and 1 of 1 "
                                "servers did (server-0, worker-1): the job cannot go on");
}

TEST_F(RollTest, WhoHasComeIsKnownUntilAllHave) {
  EXPECT_EQ(roll_.Missing(), "0 of 2 workers and 0 of 1 servers did");
  ASSERT_EQ(Run(2, {1, 3}), std::nullopt);
  EXPECT_EQ(roll_.Missing(), "1 of 2 workers and 1 of 1 servers did (server-0, worker-1)");
  Register(2);
  EXPECT_EQ(roll_.Missing(), "");
}

TEST_F(RollTest, WhoComesLateIsNotMissed) {
  ASSERT_EQ(Run(599, {1, 3}), std::nullopt);
  Register(2);
  EXPECT_EQ(Run(3600, {1, 2, 3}), std::nullopt);
}

TEST_F(RollTest, WhoHasRegisteredAndIsNeverHeardIsMissed) {
  Register(2);
  EXPECT_EQ(Run(20, {1, 3}), kSelf +
                                 " has waited 12 s for the first heartbeat of all that have "
                                 "registered: 1 of 2 workers and 1 of 1 servers did (server-0, "
                                 "worker-1): the job cannot go on");
}

TEST_F(RollTest, AFirstHeartbeatMayComeLate) {
  Register(2);
  ASSERT_EQ(Run(11, {1, 3}), std::nullopt);
  EXPECT_EQ(Run(3600, {1, 2, 3}), std::nullopt);
}

TEST_F(RollTest, AJobThatResumesWithFewerIsComplete) {
  Register(1);
  EXPECT_EQ(Run(3600, {1, 3}), std::nullopt);
}

TEST_F(RollTest, WhoWaitsForHisTurnToJoinDoesNotCount) {
  Register(1);
  ASSERT_EQ(Run(60, {1, 3}), std::nullopt);
  ASSERT_EQ(Run(60, {1, 2, 3}), std::nullopt);
  EXPECT_EQ(Run(60, {1, 3}), std::nullopt);
}

TEST_F(RollTest, WhoDiesBeforeAllHaveComeIsNamed) {
  ASSERT_EQ(Run(30, {1, 3}), std::nullopt);
  EXPECT_EQ(Run(20, {3}), "worker-1 has been silent for 12 s: the job cannot go on");
}

TEST(Roll, NoLimitMeansForever) {
  Roll roll(kSelf, 2, 1, {0, 0});
  roll.Heard(1, true, "worker-1");
  for (int i = 0; i < 10000; ++i) EXPECT_EQ(roll.Pass(1), std::nullopt);
}

class ListenerTest : public testing::Test {
 protected:
  std::optional<std::string> Run(double time_s) {
    for (int step = 1; step <= time_s; ++step)
      if (const auto lost = listener_.Pass(1)) return lost;
    return std::nullopt;
  }

  Listener listener_{kSelf, "10.0.0.1:9000", kLimits};
};

TEST_F(ListenerTest, TheSchedulerHasAHeadStart) {
  ASSERT_EQ(listener_.Heard(5), std::nullopt);
  ASSERT_EQ(Run(14), std::nullopt);
  EXPECT_EQ(Run(1), kSelf + " has been silent for 15 s: the job cannot go on");
}

TEST_F(ListenerTest, AnswersKeepItGoing) {
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(listener_.Heard(5), std::nullopt);
    ASSERT_EQ(Run(14), std::nullopt);
  }
}

TEST_F(ListenerTest, ASchedulerThatWasNeverThereHasMoreTime) {
  ASSERT_EQ(Run(599), std::nullopt);
  EXPECT_EQ(Run(1),
            "waited 600 s for " + kSelf + " to answer at 10.0.0.1:9000: the job cannot go on");
}

TEST_F(ListenerTest, WhoWaitsForTheSchedulerSaysSoOnce) {
  ASSERT_EQ(Run(9), std::nullopt);
  EXPECT_EQ(listener_.Notice(), std::nullopt);
  ASSERT_EQ(Run(1), std::nullopt);
  EXPECT_EQ(listener_.Notice(), "waits for " + kSelf +
                                    " to answer at 10.0.0.1:9000 (DMLC_PS_ROOT_URI:"
                                    "DMLC_PS_ROOT_PORT); gives up after 600 s");
  ASSERT_EQ(Run(100), std::nullopt);
  EXPECT_EQ(listener_.Notice(), std::nullopt);
}

TEST_F(ListenerTest, WhoWaitsForOthersSaysHowManyCameOnce) {
  const std::string missing = "1 of 2 workers and 1 of 1 servers did (server-0, worker-1)";
  for (int i = 0; i < 9; ++i) {
    ASSERT_EQ(listener_.Heard(5, missing), std::nullopt);
    ASSERT_EQ(Run(1), std::nullopt);
    EXPECT_EQ(listener_.Notice(), std::nullopt);
  }
  ASSERT_EQ(Run(1), std::nullopt);
  EXPECT_EQ(listener_.Notice(), "waits for all to register: " + missing + "; gives up after 600 s");
  ASSERT_EQ(Run(10), std::nullopt);
  EXPECT_EQ(listener_.Notice(), std::nullopt);
}

TEST_F(ListenerTest, WhoDoesNotWaitSaysNothing) {
  ASSERT_EQ(listener_.Heard(5, "1 of 2 workers and 1 of 1 servers did"), std::nullopt);
  listener_.Registered();
  ASSERT_EQ(listener_.Heard(5), std::nullopt);
  ASSERT_EQ(Run(14), std::nullopt);
  EXPECT_EQ(listener_.Notice(), std::nullopt);
}

TEST(Listener, WithoutALimitANoticeNamesNone) {
  Listener listener(kSelf, "10.0.0.1:9000", {0, 0});
  for (int i = 0; i < 10; ++i) ASSERT_EQ(listener.Pass(1), std::nullopt);
  EXPECT_EQ(listener.Notice(), "waits for " + kSelf +
                                   " to answer at 10.0.0.1:9000 "
                                   "(DMLC_PS_ROOT_URI:DMLC_PS_ROOT_PORT)");
}

TEST_F(ListenerTest, OneThatRegisteredUsButNeverAnsweredHasNot) {
  listener_.Registered();
  EXPECT_EQ(Run(20), kSelf + " has been silent for 15 s: the job cannot go on");
}

TEST_F(ListenerTest, WhoHasNotRegisteredJoinsASchedulerStartedAnew) {
  ASSERT_EQ(listener_.Heard(5), std::nullopt);
  EXPECT_EQ(listener_.Heard(6), std::nullopt);
  EXPECT_EQ(listener_.sender(), 6u);
}

TEST_F(ListenerTest, ASchedulerStartedAnewIsAnother) {
  listener_.Registered();
  ASSERT_EQ(listener_.Heard(5), std::nullopt);
  EXPECT_EQ(listener_.Heard(6), kSelf + " has been started anew: the job cannot go on");
}

}  // namespace
}  // namespace byteprophet
