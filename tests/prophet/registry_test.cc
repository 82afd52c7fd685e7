#include "prophet/registry.h"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

namespace prophet {
namespace {

std::string Refusal(std::string_view policy, const Settings& settings) {
  try {
    MakePolicy(policy, settings);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Registry, Names) {
  EXPECT_EQ(PolicyNames(),
            (std::vector<std::string>{"fifo", "p3", "bytescheduler", "bytescheduler-reduce",
                                      "prophet-paper", "prophet"}));
}

TEST(Registry, EveryPolicyIsMadeUnderItsNameFromItsDefaults) {
  for (const std::string& name : PolicyNames()) {
    const Settings defaults = DefaultSettings(name);
    EXPECT_TRUE(defaults.contains("partition_bytes")) << name;
    EXPECT_EQ(MakePolicy(name, defaults)->name(), name);
  }
}

TEST(Registry, UnknownPolicy) {
  EXPECT_EQ(Refusal("lifo", {}),
            "no scheduler is called 'lifo'; there are fifo, p3, bytescheduler, "
            "bytescheduler-reduce, prophet-paper, prophet");
  EXPECT_THROW(DefaultSettings(""), std::invalid_argument);
}

TEST(Registry, UnknownSettingNamesTheAcceptedOnes) {
  EXPECT_EQ(Refusal("p3", {{"credit_bytes", 1}}),
            "scheduler p3 has no setting 'credit_bytes'; it accepts partition_bytes, "
            "outstanding_messages");
}

TEST(Registry, ValuesOutOfRange) {
  EXPECT_EQ(
      Refusal("p3", {{"outstanding_messages", 0}}),
      "scheduler p3: setting outstanding_messages=0 is out of range; it accepts 1 to 1048576");
  for (const std::string& name : PolicyNames()) {
    for (const auto& [setting, value] : DefaultSettings(name)) {
      EXPECT_NE(Refusal(name, {{setting, -1}}), "accepted") << name << " " << setting;
      EXPECT_NE(Refusal(name, {{setting, std::numeric_limits<int64_t>::max()}}), "accepted");
      // Zero means: find out, or none.
      if (!setting.ends_with("bandwidth_bps") && setting != "window_floor_bytes" &&
          setting != "partition_max_bytes" && setting != "common_order" && setting != "in_order") {
        EXPECT_NE(Refusal(name, {{setting, 0}}), "accepted") << name << " " << setting;
      }
    }
  }
}

TEST(Registry, ProphetsFloorIsNotAboveItsMaximum) {
  EXPECT_EQ(Refusal("prophet", {{"window_floor_bytes", 8}, {"window_max_bytes", 4}}),
            "scheduler prophet: setting window_floor_bytes=8 must not be above window_max_bytes=4");
  EXPECT_EQ(Refusal("prophet", {{"window_floor_bytes", 4}, {"window_max_bytes", 4}}), "accepted");
}

TEST(Registry, AReconfiguredPolicyKeepsWhatIsNotNamedAndRefusesAsAWhole) {
  const auto policy = MakePolicy("prophet", {{"window_max_bytes", 500}, {"partition_bytes", 7}});
  policy->Reconfigure({{"window_floor_bytes", 400}, {"window_max_bytes", 600}});
  EXPECT_EQ(policy->settings(), (Settings{{"partition_bytes", 7},
                                          {"partition_max_bytes", 1 << 22},
                                          {"window_floor_bytes", 400},
                                          {"window_max_bytes", 600},
                                          {"bandwidth_bps", 0},
                                          {"plan_bandwidth_bps", 0},
                                          {"common_order", 1},
                                          {"in_order", 0}}));
  const Settings before = policy->settings();
  EXPECT_THROW(policy->Reconfigure({{"window_max_bytes", 300}}), std::invalid_argument);
  EXPECT_THROW(policy->Reconfigure({{"bandwidth_bps", 5}, {"speed", 1}}), std::invalid_argument);
  EXPECT_EQ(policy->settings(), before);
  for (const std::string& name : PolicyNames()) {
    EXPECT_EQ(MakePolicy(name)->settings(), DefaultSettings(name)) << name;
  }
}

}  // namespace
}  // namespace prophet
