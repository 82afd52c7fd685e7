#include "scenario.h"

#include <numeric>

namespace prophet {
namespace {

// Priorities of the tensors: forward order, another order, or none known yet.
std::vector<int32_t> Priorities(size_t tensors, Random& random) {
  std::vector<int32_t> priorities(tensors);
  std::iota(priorities.rbegin(), priorities.rend(), -static_cast<int32_t>(tensors));
  if (random.Chance(20)) random.Shuffle(priorities);
  if (random.Chance(10)) priorities.assign(tensors, 0);
  if (random.Chance(10)) priorities.assign(tensors, -7);
  return priorities;
}

}  // namespace

Scenario MakeScenario(Random& random) {
  Scenario scenario;
  scenario.servers = static_cast<uint32_t>(random.Uniform(1, 4));
  scenario.workers = static_cast<size_t>(random.Chance(50) ? 1 : random.Uniform(2, 3));
  scenario.coupled = scenario.workers > 1 || random.Chance(40);
  scenario.barrier = scenario.coupled && random.Chance(70);
  scenario.still = random.Chance(3);
  scenario.iteration_calls = static_cast<int>(random.Uniform(0, 2));
  scenario.drop_and_resume = random.Chance(15);
  // From microseconds, where sizes are kilobytes, to milliseconds and megabytes.
  const int64_t scale = random.Magnitude(1, 1000);
  if (!scenario.still) {
    scenario.burst_gap_ns = random.Uniform(1, 5000) * scale;
    scenario.max_delay_ns = random.Uniform(1, 20000) * scale;
    scenario.iteration_gap_ns = random.Uniform(0, 30000) * scale;
    scenario.late_percent = random.Chance(20) ? 10 : 0;
  }

  const auto tensors = static_cast<size_t>(random.Uniform(1, 15));
  const int64_t max_parts = random.Uniform(1, 6);
  const int64_t max_bytes = 3000 * scale;
  const bool new_priorities = random.Chance(30);
  std::vector<int32_t> priorities = Priorities(tensors, random);
  scenario.iterations.resize(static_cast<size_t>(random.Uniform(1, 4)));
  for (auto& items : scenario.iterations) {
    if (new_priorities) priorities = Priorities(tensors, random);
    for (size_t tensor = tensors; tensor-- > 0;) {
      if (random.Chance(5)) continue;  // missing this time
      const bool unranked = random.Chance(3);
      const auto parts = static_cast<size_t>(random.Uniform(1, max_parts));
      for (size_t part = 0; part < parts; ++part) {
        items.push_back(
            {.key = tensor << 16 | part,
             .server = static_cast<uint32_t>((tensor + part) % scenario.servers),
             .priority = unranked ? static_cast<int32_t>(random.Uniform(0, 2)) : priorities[tensor],
             .bytes = static_cast<uint64_t>(random.Chance(5) ? 0 : random.Uniform(1, max_bytes))});
      }
    }
  }
  return scenario;
}

}  // namespace prophet
