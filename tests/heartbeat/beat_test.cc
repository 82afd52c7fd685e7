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
  EXPECT_EQ(AnswerFrom(ToText(Answer{5, ""}))->lost, "");
  const auto answer = AnswerFrom(ToText(Answer{5, "worker-1 is gone: stop"}));
  EXPECT_EQ(answer->scheduler, 5u);
  EXPECT_EQ(answer->lost, "worker-1 is gone: stop");
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
