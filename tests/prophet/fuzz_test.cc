// Every policy through thousands of random jobs with fixed seeds (see simulator.h): nothing hangs,
// everything is sent once, in the policy's order, and exactly when its rule allows.
#include <gtest/gtest.h>

#include <random>

#include "prophet/policy/queued.h"
#include "prophet/registry.h"
#include "simulator.h"

namespace prophet {
namespace {

constexpr uint64_t kSeeds = 1500;

template <typename MakeCase>
void Fuzz(const std::string& name, const MakeCase& make_case) {
  size_t sent = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    std::mt19937_64 random(~seed);
    const auto pick = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    const auto [settings, rules] = make_case(pick);
    const auto policy = MakePolicy(name, settings);
    const Outcome outcome = Simulate(*policy, rules, seed);
    ASSERT_EQ(outcome.failure, "") << name << ", seed " << seed;
    sent += outcome.sent;
  }
  EXPECT_GT(sent, kSeeds * 10);  // the jobs are not trivial
}

Gate OpenIf(bool open) { return open ? Gate::kOpen : Gate::kClosed; }

using Case = std::pair<Settings, Rules>;

TEST(Fuzz, Fifo) {
  Fuzz("fifo", [](const auto&) -> Case {
    return {{}, {true, [](const Item&, const ServerLoad&) { return Gate::kOpen; }}};
  });
}

TEST(Fuzz, P3) {
  Fuzz("p3", [](const auto& pick) -> Case {
    // Half of the cases with the published two.
    const auto limit = pick(0, 1) == 0 ? 2 : pick(1, 6);
    return {{{"outstanding_messages", limit}},
            {false, [limit](const Item&, const ServerLoad& load) {
               return OpenIf(load.messages < static_cast<size_t>(limit));
             }}};
  });
}

TEST(Fuzz, ByteScheduler) {
  Fuzz("bytescheduler", [](const auto& pick) -> Case {
    const int64_t credit = pick(1, 12000);
    return {{{"credit_bytes", credit}},
            {false, [credit](const Item&, const ServerLoad& load) {
               return OpenIf(load.messages < kMaxMessagesPerServer &&
                             credit - static_cast<int64_t>(load.bytes) > 0);
             }}};
  });
}

TEST(Fuzz, Prophet) {
  Fuzz("prophet", [](const auto& pick) -> Case {
    const auto floor = static_cast<uint64_t>(pick(1, 6000));
    const auto max = floor + static_cast<uint64_t>(pick(0, 20000));
    const int64_t bandwidth_bps = pick(0, 1) == 0 ? 0 : pick(1, 20'000'000'000);
    const Settings settings = {{"window_floor_bytes", static_cast<int64_t>(floor)},
                               {"window_max_bytes", static_cast<int64_t>(max)},
                               {"bandwidth_bps", bandwidth_bps}};
    return {settings, {false, [floor, max](const Item& head, const ServerLoad& load) {
                         if (load.messages >= kMaxMessagesPerServer) return Gate::kClosed;
                         if (IsUnranked(head) || load.bytes < floor) return Gate::kOpen;
                         return load.bytes < max ? Gate::kEither : Gate::kClosed;
                       }}};
  });
}

}  // namespace
}  // namespace prophet
