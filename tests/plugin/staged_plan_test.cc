// A staged plan is adopted at its iteration, once, or refused when it is staged.
#include "native/plugin/staged_plan.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "prophet/registry.h"

namespace byteprophet {
namespace {

Plan Window(int64_t bytes) { return {.settings = {{"window_max_bytes", bytes}}, .times = {}}; }

class StagedPlans : public testing::Test {
 protected:
  StagedPlans() { staged_.Reset("prophet", prophet::DefaultSettings("prophet")); }
  StagedPlan staged_;
};

TEST_F(StagedPlans, AdoptedAtItsIterationOnce) {
  staged_.Stage(3, Window(1 << 21));
  EXPECT_FALSE(staged_.Begin().plan);
  EXPECT_FALSE(staged_.Begin().plan);
  const StagedPlan::Begun begun = staged_.Begin();
  EXPECT_EQ(begun.iteration, 3);
  ASSERT_TRUE(begun.plan);
  EXPECT_EQ(begun.plan->settings.at("window_max_bytes"), 1 << 21);
  EXPECT_FALSE(staged_.Begin().plan);
  EXPECT_EQ(staged_.iteration(), 4);
}

TEST_F(StagedPlans, AnOrderIsForTheNextIterationWhateverPlanIsStaged) {
  staged_.Stage(2, Window(1 << 21));
  staged_.Order({.bandwidth_bps = 5, .times = {{.tensor = 1}}});
  StagedPlan::Begun begun = staged_.Begin();
  EXPECT_FALSE(begun.plan);
  ASSERT_TRUE(begun.order);
  EXPECT_EQ(begun.order->bandwidth_bps, 5);
  EXPECT_EQ(begun.order->times.size(), 1);
  begun = staged_.Begin();
  EXPECT_TRUE(begun.plan);
  EXPECT_FALSE(begun.order);
  staged_.Order({.bandwidth_bps = 5, .times = {}});
  staged_.Reset("", {});
  EXPECT_FALSE(staged_.Begin().order);
  EXPECT_THROW(staged_.Order({.bandwidth_bps = 5, .times = {}}), std::invalid_argument);
}

TEST_F(StagedPlans, ANewerOneTakesItsPlace) {
  staged_.Stage(1, Window(1 << 21));
  staged_.Stage(2, Window(1 << 22));
  EXPECT_FALSE(staged_.Begin().plan);
  const StagedPlan::Begun begun = staged_.Begin();
  ASSERT_TRUE(begun.plan);
  EXPECT_EQ(begun.plan->settings.at("window_max_bytes"), 1 << 22);
}

TEST_F(StagedPlans, ARefusedOneChangesNothing) {
  staged_.Begin();
  staged_.Stage(2, Window(1 << 21));
  EXPECT_THROW(staged_.Stage(1, Window(1 << 22)), std::invalid_argument);  // has begun
  EXPECT_THROW(staged_.Stage(5, {.settings = {{"haste", 1}}, .times = {}}), std::invalid_argument);
  EXPECT_THROW(staged_.Stage(5, {.settings = {}, .times = {{.tensor = 1, .priority = 1}}}),
               std::invalid_argument);
  const StagedPlan::Begun begun = staged_.Begin();
  ASSERT_TRUE(begun.plan);
  EXPECT_EQ(begun.plan->settings.at("window_max_bytes"), 1 << 21);
}

// Settings may contradict each other: what counts is what the policy has once plans were adopted.
TEST_F(StagedPlans, CheckedAgainstWhatWasAdopted) {
  const Plan floor{.settings = {{"window_floor_bytes", 1 << 22}}, .times = {}};
  EXPECT_THROW(staged_.Stage(2, floor), std::invalid_argument);  // above the default maximum
  staged_.Stage(1, Window(1 << 23));
  EXPECT_TRUE(staged_.Begin().plan);
  staged_.Stage(2, floor);
  EXPECT_TRUE(staged_.Begin().plan);
}

TEST_F(StagedPlans, AChangeComesWithTheNextIterationAndLeavesThePlan) {
  staged_.Stage(2, Window(1 << 21));
  staged_.Change({{"partition_bytes", 1 << 19}});
  staged_.Change({{"window_max_bytes", 1 << 23}});
  EXPECT_EQ(staged_.partition_bytes(), 1 << 18);
  const StagedPlan::Begun first = staged_.Begin();
  ASSERT_TRUE(first.plan);
  EXPECT_EQ(first.plan->settings,
            (prophet::Settings{{"partition_bytes", 1 << 19}, {"window_max_bytes", 1 << 23}}));
  EXPECT_EQ(staged_.partition_bytes(), 1 << 19);
  const StagedPlan::Begun second = staged_.Begin();
  ASSERT_TRUE(second.plan);
  EXPECT_EQ(second.plan->settings, Window(1 << 21).settings);
  EXPECT_FALSE(staged_.Begin().plan);
}

TEST_F(StagedPlans, ThePlanHoldsWhereAChangeNamesTheSame) {
  staged_.Stage(1, Window(1 << 21));
  staged_.Change({{"window_max_bytes", 1 << 23}});
  EXPECT_EQ(staged_.Begin().plan->settings.at("window_max_bytes"), 1 << 21);
}

// Each alone would do.
TEST_F(StagedPlans, AChangeAndAPlanMustNotContradictEachOther) {
  staged_.Stage(1, Window(1 << 19));
  EXPECT_THROW(staged_.Change({{"haste", 1}}), std::invalid_argument);
  EXPECT_THROW(staged_.Change({{"window_floor_bytes", 1 << 20}}), std::invalid_argument);
  EXPECT_EQ(staged_.Begin().plan->settings, Window(1 << 19).settings);
}

TEST_F(StagedPlans, ANewGateStartsFromItsOwnSettings) {
  staged_.Stage(1, Window(1 << 21));
  staged_.Change({{"partition_bytes", 1 << 19}});
  staged_.Reset("p3", prophet::DefaultSettings("p3"));
  EXPECT_FALSE(staged_.Begin().plan);
  EXPECT_THROW(staged_.Stage(2, Window(1 << 21)), std::invalid_argument);
  staged_.Reset("", {});
  EXPECT_THROW(staged_.Stage(2, {}), std::invalid_argument);
  EXPECT_THROW(staged_.Change({}), std::invalid_argument);
  EXPECT_EQ(staged_.partition_bytes(), 0);
}

}  // namespace
}  // namespace byteprophet
