// What it costs to share links anew when one flow ends and another begins, by the number of links
// (and of flows, each over three of them), all of which flows join: it must grow little faster than
// that number.
#include "prophet/fluid/links.h"

#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <random>
#include <vector>

namespace prophet::fluid {
namespace {

void Share(benchmark::State& state) {
  const auto count = static_cast<size_t>(state.range(0));
  std::mt19937_64 random(1);
  std::vector<int64_t> rates;
  for (size_t i = 0; i < count; ++i) {
    rates.push_back(100'000'000'000 + static_cast<int64_t>(random() % 900'000'000'000));
  }
  Links links(rates);
  for (size_t i = 0; i < count; ++i) {
    const size_t first = random() % (count / 4);
    std::array<int32_t, 3> route{};
    for (size_t at = 0; at < route.size(); ++at) {
      route[at] = static_cast<int32_t>(first + at * (count / 4) + random() % (count / 4)) %
                  static_cast<int32_t>(count);
    }
    if (route[0] == route[1]) route[1] = (route[1] + 1) % static_cast<int32_t>(count);
    while (route[2] == route[0] || route[2] == route[1]) {
      route[2] = (route[2] + 1) % static_cast<int32_t>(count);
    }
    links.AddConnection(route);
  }
  for (size_t i = 0; i < count; ++i) links.StartBytes(i, 1'000'000'000, 0);
  links.Settle(0);
  for ([[maybe_unused]] auto _ : state) {
    const TimeNs now = links.next_ns();
    const size_t ended = links.Take();
    links.Settle(now);
    links.StartBytes(ended, 1'000'000'000, now);
    links.Settle(now);
  }
  state.SetComplexityN(state.range(0));
}

BENCHMARK(Share)->Name("Links/Share")->RangeMultiplier(8)->Range(16, 8192)->Complexity();

}  // namespace
}  // namespace prophet::fluid
