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

TEST_F(StagedPlans, ANewGateStartsFromItsOwnSettings) {
  staged_.Stage(1, Window(1 << 21));
  staged_.Reset("p3", prophet::DefaultSettings("p3"));
  EXPECT_FALSE(staged_.Begin().plan);
  EXPECT_THROW(staged_.Stage(2, Window(1 << 21)), std::invalid_argument);
  staged_.Reset("", {});
  EXPECT_THROW(staged_.Stage(2, {}), std::invalid_argument);
}

}  // namespace
}  // namespace byteprophet
