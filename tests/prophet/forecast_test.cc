#include "prophet/policy/forecast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "drain.h"

namespace prophet {
namespace {

constexpr TimeNs kMs = 1'000'000;

// One iteration of tensors 3, 2, 1, priorities -3, -2, -1, at 0, 10 and `last` ms.
void Iterate(ReadyForecast& forecast, TimeNs start, TimeNs last = 20) {
  forecast.OnReady(Key(3), -3, start);
  forecast.OnReady(Key(2), -2, start + 10 * kMs);
  forecast.OnReady(Key(1), -1, start + last * kMs);
}

TEST(Forecast, NothingIsExpectedBeforeTheFirstIterationEnds) {
  ReadyForecast forecast;
  EXPECT_FALSE(forecast.NextAbove(-100));
  Iterate(forecast, 0);
  EXPECT_FALSE(forecast.NextAbove(-100));
}

TEST(Forecast, EarliestOfWhatOutranksAndIsStillToCome) {
  ReadyForecast forecast;
  Iterate(forecast, 0);
  forecast.OnIteration();
  EXPECT_FALSE(forecast.NextAbove(-3));  // the iteration has not started
  const TimeNs start = 500 * kMs;
  forecast.OnReady(Key(3), -3, start);
  EXPECT_EQ(forecast.NextAbove(-3), start + 10 * kMs);
  EXPECT_EQ(forecast.NextAbove(-2), start + 20 * kMs);
  EXPECT_FALSE(forecast.NextAbove(-1));
  forecast.OnReady(Key(2), -2, start + 10 * kMs);
  EXPECT_EQ(forecast.NextAbove(-3), start + 20 * kMs);
  forecast.OnReady(Key(1), -1, start + 20 * kMs);
  EXPECT_FALSE(forecast.NextAbove(-100));
}

TEST(Forecast, TheFirstIterationCountsOnlyUntilThereIsASecond) {
  ReadyForecast forecast;
  Iterate(forecast, 0, 5000);
  Iterate(forecast, 10'000 * kMs, 20);
  forecast.OnReady(Key(3), -3, 20'000 * kMs);
  EXPECT_EQ(forecast.NextAbove(-2), 20'020 * kMs);
}

TEST(Forecast, TimesAreOfWhatHasComeInThisIteration) {
  ReadyForecast forecast;
  Iterate(forecast, 0);
  EXPECT_EQ(forecast.Times().size(), 3);
  forecast.OnIteration();
  EXPECT_TRUE(forecast.Times().empty());
  forecast.OnReady(Key(3), -3, 100 * kMs);
  forecast.OnReady(Key(1), -1, 140 * kMs);
  auto times = forecast.Times();
  std::sort(times.begin(), times.end(),
            [](const ReadyTime& a, const ReadyTime& b) { return a.tensor < b.tensor; });
  ASSERT_EQ(times.size(), 2);
  EXPECT_EQ(times[0].tensor, 1);
  EXPECT_EQ(times[0].priority, -1);
  EXPECT_EQ(times[0].ready_ns, 40 * kMs);
  EXPECT_EQ(times[0].spread_ns, 0);
  EXPECT_EQ(times[1].tensor, 3);
  EXPECT_EQ(times[1].ready_ns, 0);
  // Another forecast is the same once it has been given them.
  ReadyForecast other;
  other.Set(times);
  other.OnReady(Key(3), -3, 0);
  EXPECT_EQ(other.NextAbove(-3), 40 * kMs);
}

TEST(Forecast, AKeyThatReturnsStartsAnIteration) {
  ReadyForecast forecast;
  Iterate(forecast, 0);
  forecast.OnReady(Key(3), -3, 100 * kMs);
  EXPECT_EQ(forecast.NextAbove(-3), 110 * kMs);
}

TEST(Forecast, OtherPartitionsOfATensorDoNot) {
  ReadyForecast forecast;
  Iterate(forecast, 0);
  forecast.OnReady(Key(3, 1), -3, 30 * kMs);
  forecast.OnReady(Key(1, 1), -1, 31 * kMs);
  forecast.OnReady(Key(1, 2), -1, 90 * kMs);
  EXPECT_FALSE(forecast.NextAbove(-100));
  forecast.OnReady(Key(3), -3, 100 * kMs);
  // The first partition of tensor 1 counted, not the late ones.
  EXPECT_EQ(forecast.NextAbove(-2), 120 * kMs);
}

TEST(Forecast, FollowsDriftAndIsEarlyByTheSpread) {
  ReadyForecast forecast;
  TimeNs start = 0;
  for (int i = 0; i < 40; ++i) Iterate(forecast, start += 1000 * kMs);
  for (int i = 0; i < 40; ++i) Iterate(forecast, start += 1000 * kMs, 50);
  forecast.OnReady(Key(3), -3, start += 1000 * kMs);
  EXPECT_NEAR(static_cast<double>(*forecast.NextAbove(-2) - start), 50e6, 1e4);

  for (int i = 0; i < 100; ++i) Iterate(forecast, start += 1000 * kMs, i % 2 == 0 ? 40 : 60);
  forecast.OnReady(Key(3), -3, start += 1000 * kMs);
  const TimeNs early = *forecast.NextAbove(-2) - start;
  EXPECT_GT(early, 30 * kMs);
  EXPECT_LT(early, 45 * kMs);
}

TEST(Forecast, ALateTensorIsPredictedInThePastAndForgottenIfItStaysAway) {
  ReadyForecast forecast;
  Iterate(forecast, 0);
  for (int absent = 0; absent <= ReadyForecast::kForgetAfter; ++absent) {
    forecast.OnIteration();
    const TimeNs start = (absent + 1) * 1000 * kMs;
    forecast.OnReady(Key(3), -3, start);
    forecast.OnReady(Key(2), -2, start + 10 * kMs);
    EXPECT_EQ(forecast.NextAbove(-2), start + 20 * kMs);  // whatever the time is now
  }
  forecast.OnIteration();
  forecast.OnReady(Key(3), -3, 9000 * kMs);
  EXPECT_FALSE(forecast.NextAbove(-2));
}

TEST(Forecast, ATensorThatComesNowAndThenIsNotForgotten) {
  ReadyForecast forecast;
  Iterate(forecast, 0);
  for (int i = 0; i < 12; ++i) {
    forecast.OnIteration();
    const TimeNs start = (i + 1) * 1000 * kMs;
    forecast.OnReady(Key(3), -3, start);
    EXPECT_EQ(forecast.NextAbove(-2), start + 20 * kMs) << i;
    if (i % 3 == 2) forecast.OnReady(Key(1), -1, start + 20 * kMs);
  }
}

TEST(Forecast, BoundariesWithoutItemsCountForNothing) {
  ReadyForecast forecast;
  Iterate(forecast, 0);
  for (int i = 0; i < 20; ++i) forecast.OnIteration();
  forecast.OnReady(Key(3), -3, 100 * kMs);
  EXPECT_EQ(forecast.NextAbove(-3), 110 * kMs);
}

TEST(Forecast, ProfileKnownBeforehand) {
  ReadyForecast forecast;
  const ReadyTime times[] = {{1, -1, 20 * kMs, 2 * kMs}, {2, -2, 10 * kMs, 30 * kMs}};
  forecast.Set(times);
  forecast.OnReady(Key(3), -3, 7 * kMs);
  EXPECT_EQ(forecast.NextAbove(-2), (7 + 18) * kMs);
  EXPECT_EQ(forecast.NextAbove(-3), 7 * kMs);  // not before the iteration
}

TEST(Forecast, ProfileGivenInTheMiddleOfAnIteration) {
  ReadyForecast forecast;
  forecast.OnReady(Key(3), -3, 0);
  forecast.OnReady(Key(1), -1, 5 * kMs);
  const ReadyTime times[] = {{1, -1, 20 * kMs, 0}, {2, -2, 10 * kMs, 0}};
  forecast.Set(times);
  EXPECT_EQ(forecast.NextAbove(-3), 10 * kMs);
  EXPECT_FALSE(forecast.NextAbove(-2));  // tensor 1 is here already
}

TEST(Forecast, TimesAreNoLaterThanInThisIteration) {
  ReadyForecast forecast;
  for (const TimeNs last : {20, 900, 900, 20}) {
    forecast.OnIteration();
    Iterate(forecast, 0, last);
  }
  for (const ReadyTime& time : forecast.Times()) EXPECT_LE(time.ready_ns, 20 * kMs);
}

TEST(Forecast, RefusesAProfileThatCannotBe) {
  ReadyForecast forecast;
  for (const ReadyTime& wrong :
       {ReadyTime{1, 0, 1, 1}, ReadyTime{1, -1, -1, 1}, ReadyTime{1, -1, 1, -1}}) {
    const ReadyTime times[] = {{2, -2, 10, 0}, wrong};
    EXPECT_THROW(forecast.Set(times), std::invalid_argument);
  }
  forecast.OnReady(Key(3), -3, 0);
  EXPECT_FALSE(forecast.NextAbove(-3));
}

}  // namespace
}  // namespace prophet
