#include "beat.h"

#include <gtest/gtest.h>

#include <random>

namespace byteprophet {
namespace {

TEST(Beat, ComesBackAsItWasSent) {
  const auto beat = BeatFrom(ToText(Beat{~0ULL, 7, true, "worker-1 (10.87.0.4)"}));
  ASSERT_TRUE(beat);
  EXPECT_EQ(beat->sender, ~0ULL);
  EXPECT_EQ(beat->scheduler, 7u);
  EXPECT_TRUE(beat->is_worker);
  EXPECT_EQ(beat->name, "worker-1 (10.87.0.4)");
  EXPECT_FALSE(BeatFrom(ToText(Beat{1, 2, false, "server"}))->is_worker);
}

TEST(Answer, ComesBackWithAndWithoutALine) {
  EXPECT_EQ(AnswerFrom(ToText(Answer{5, "", ""}))->lost, "");
  const auto answer = AnswerFrom(ToText(Answer{5, "worker-1 is gone: stop", ""}));
  EXPECT_EQ(answer->scheduler, 5u);
  EXPECT_EQ(answer->lost, "worker-1 is gone: stop");
  EXPECT_EQ(answer->missing, "");
}

TEST(Answer, SaysWhoIsThereWhileOthersAreMissing) {
  const auto answer = AnswerFrom(ToText(Answer{5, "", "1 of 2 workers did"}));
  EXPECT_EQ(answer->missing, "1 of 2 workers did");
  EXPECT_EQ(answer->lost, "");
  const auto verdict = AnswerFrom(ToText(Answer{5, "worker-1 is gone", "1 of 2 workers did"}));
  EXPECT_EQ(verdict->lost, "worker-1 is gone");
  EXPECT_EQ(verdict->missing, "");
}

TEST(Beat, SaysThatAWorkerHasLeft) {
  for (const bool suspends : {false, true}) {
    const auto beat = BeatFrom(ToText(Beat{1, 2, true, "worker-1", Departure{41, suspends}}));
    ASSERT_TRUE(beat && beat->departure);
    EXPECT_TRUE(beat->is_worker);
    EXPECT_EQ(beat->name, "worker-1");
    EXPECT_EQ(beat->departure->operations, 41u);
    EXPECT_EQ(beat->departure->suspends, suspends);
  }
  for (const char* kind : {"worker", "server", "finished:", "finished:-1", "finished:1x", "left:1"})
    EXPECT_FALSE(BeatFrom(std::string("byteprophet-beat 1 2 ") + kind + " x")->departure) << kind;
}

TEST(Answer, SaysWhoHasLeftUnlessTheJobIsLost) {
  const auto answer = AnswerFrom(ToText(Answer{5, "", "", WhoLeft{0, "worker-1 has finished"}}));
  EXPECT_EQ(answer->lost, "");
  EXPECT_EQ(answer->left->operations, 0u);
  EXPECT_EQ(answer->left->who, "worker-1 has finished");
  const auto lost = AnswerFrom(ToText(Answer{5, "left:3 is gone", "", WhoLeft{0, "x"}}));
  EXPECT_EQ(lost->lost, "left:3 is gone");
  EXPECT_FALSE(lost->left);
}

TEST(Beat, WhatElseComesIsNotOne) {
  for (const char* text : {"", "byteprophet", "byteprophet-beat", "byteprophet-beat x 1 worker a",
                           "byteprophet-beat 1", "byteprophet-answer 5 x"})
    EXPECT_FALSE(BeatFrom(text)) << text;
  EXPECT_FALSE(AnswerFrom("byteprophet-beat 1 2 worker a"));
  EXPECT_FALSE(AnswerFrom("byteprophet-answer "));
}

TEST(Beat, NamesFromTheNetworkArePrintableAndShort) {
  std::mt19937 random(1);
  std::uniform_int_distribution<int> byte(0, 255), size(0, 5000);
  for (int round = 0; round < 1000; ++round) {
    std::string text = "byteprophet-beat 1 0 worker ";
    for (int i = size(random); i > 0; --i) text += static_cast<char>(byte(random));
    const auto beat = BeatFrom(text);
    ASSERT_TRUE(beat);
    EXPECT_LE(beat->name.size(), 1000u);
    for (const char c : beat->name) EXPECT_TRUE(c >= ' ' && c <= '~');
  }
}

}  // namespace
}  // namespace byteprophet
