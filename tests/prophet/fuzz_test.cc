// Every policy through many random jobs (see simulator.h): nothing hangs, everything is sent once,
// in the policy's order, and exactly when its rule allows. A seed is a scenario, on every machine.
//
// BYTEPROPHET_FUZZ_SCENARIOS: how many (make fuzz: 100000). BYTEPROPHET_FUZZ_SEED: only this one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "prophet/registry.h"
#include "simulator.h"

namespace prophet {
namespace {

constexpr uint64_t kScenarios = 8000;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(Fuzz, EveryPolicy) {
  const std::vector<std::string> policies = PolicyNames();
  const uint64_t only = FromEnvironment("BYTEPROPHET_FUZZ_SEED", 0);
  const uint64_t count = FromEnvironment("BYTEPROPHET_FUZZ_SCENARIOS", kScenarios);
  const uint64_t first = only > 0 ? only : 1;
  const uint64_t last = only > 0 ? only : count;
  Outcome total;
  size_t deadlocks = 0, failures = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    const std::string& policy = policies[seed % policies.size()];
    const Outcome outcome = Simulate(policy, seed, MakePolicy);
    total.sent += outcome.sent;
    total.suspends += outcome.suspends;
    if (outcome.failure.empty()) continue;
    deadlocks += outcome.deadlock ? 1 : 0;
    if (++failures > 5) continue;
    ADD_FAILURE() << policy << ", " << outcome.failure << "; alone: BYTEPROPHET_FUZZ_SEED=" << seed
                  << " prophet_tests --gtest_filter=Fuzz.*";
  }
  std::cout << "fuzz: " << last - first + 1 << " scenarios, " << total.sent << " items sent, "
            << total.suspends << " suspends, " << deadlocks << " deadlocks, " << failures
            << " failures" << std::endl;
  EXPECT_EQ(failures, 0u);
  EXPECT_TRUE(only > 0 || total.sent > 20 * count) << "the scenarios are trivial";
}

}  // namespace
}  // namespace prophet
