// Rates of random flows with weights, on up to 1,024 links: what progressive filling gives, written
// a second time in floating point, and what makes rates max-min fair whatever found them: nothing
// is over its limit, and each flow has a link that is full and on which no other flow has a higher
// rate (Bertsekas and Gallager 1992, 6.5.2).
#include "prophet/fluid/links.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace prophet::fluid {
namespace {

struct Use {
  size_t link;
  int32_t weight;
};
struct Case {
  std::vector<int64_t> rates;
  std::vector<std::vector<Use>> flows;
};

double Weight(const Use& use) { return use.weight / static_cast<double>(kWhole); }

Case Random(std::mt19937_64& random, size_t links, size_t flows) {
  const auto below = [&](size_t limit) { return random() % limit; };
  Case made;
  for (size_t i = 0; i < links; ++i) {
    made.rates.push_back(static_cast<int64_t>(100'000'000'000 + below(900'000'000'000)));
  }
  for (size_t i = 0; i < flows; ++i) {
    std::vector<Use> uses;
    const size_t length = 1 + below(std::min<size_t>(links, 5));
    while (uses.size() < length) {
      const size_t link = below(links);
      if (std::any_of(uses.begin(), uses.end(), [&](const Use& use) { return use.link == link; })) {
        continue;
      }
      const auto weight = below(2) == 0 ? kWhole * static_cast<int32_t>(1 + below(4))
                                        : static_cast<int32_t>(kWhole / 64 + below(4 * kWhole));
      uses.push_back({link, weight});
    }
    made.flows.push_back(uses);
  }
  return made;
}

std::vector<double> Rates(const Case& of) {
  Links links(of.rates);
  for (const auto& flow : of.flows) {
    std::vector<int32_t> route, weights;
    for (const Use& use : flow) {
      route.push_back(static_cast<int32_t>(use.link));
      weights.push_back(use.weight);
    }
    links.AddConnection(route, weights);
  }
  for (size_t i = 0; i < of.flows.size(); ++i) links.StartBytes(i, 1'000'000, 0);
  links.Settle(0);
  std::vector<double> rates;
  for (size_t i = 0; i < of.flows.size(); ++i) {
    rates.push_back(static_cast<double>(links.rate_bps(i)));
  }
  return rates;
}

// All rates grow together; the flows of a link that becomes full stop.
std::vector<double> Filled(const Case& of) {
  std::vector<double> rates(of.flows.size());
  std::vector<bool> stopped(of.flows.size());
  std::vector<double> left(of.rates.begin(), of.rates.end());
  double level = 0;
  for (;;) {
    std::vector<double> open(of.rates.size());
    for (size_t i = 0; i < of.flows.size(); ++i) {
      for (const Use& use : of.flows[i]) open[use.link] += stopped[i] ? 0 : Weight(use);
    }
    double step = -1;
    size_t full = 0;
    for (size_t link = 0; link < left.size(); ++link) {
      if (open[link] < 1e-9) continue;
      const double until = std::max(0.0, left[link]) / open[link];
      if (step < 0 || until < step) step = until, full = link;
    }
    if (step < 0) return rates;
    level += step;
    for (size_t link = 0; link < left.size(); ++link) left[link] -= step * open[link];
    for (size_t i = 0; i < of.flows.size(); ++i) {
      const auto& uses = of.flows[i];
      const bool stops =
          std::any_of(uses.begin(), uses.end(), [&](const Use& use) { return use.link == full; });
      if (stopped[i] || !stops) continue;
      stopped[i] = true;
      rates[i] = level;
    }
  }
}

void ExpectFair(const Case& of, const std::vector<double>& rates) {
  std::vector<double> taken(of.rates.size()), highest(of.rates.size());
  for (size_t i = 0; i < of.flows.size(); ++i) {
    for (const Use& use : of.flows[i]) {
      taken[use.link] += rates[i] * Weight(use);
      highest[use.link] = std::max(highest[use.link], rates[i]);
    }
  }
  for (size_t link = 0; link < taken.size(); ++link) {
    EXPECT_LE(taken[link], static_cast<double>(of.rates[link]) * (1 + 1e-12));
  }
  for (size_t i = 0; i < of.flows.size(); ++i) {
    const auto& uses = of.flows[i];
    EXPECT_TRUE(std::any_of(uses.begin(), uses.end(),
                            [&](const Use& use) {
                              return taken[use.link] >=
                                         static_cast<double>(of.rates[use.link]) * (1 - 1e-6) &&
                                     highest[use.link] <= rates[i] * (1 + 1e-6);
                            }))
        << "flow " << i;
  }
}

void Check(size_t links, size_t flows, uint64_t seed) {
  std::mt19937_64 random(seed);
  const Case made = Random(random, links, flows);
  const std::vector<double> rates = Rates(made);
  const std::vector<double> filled = Filled(made);
  for (size_t i = 0; i < rates.size(); ++i) {
    ASSERT_NEAR(rates[i], filled[i], 1e-6 * filled[i]) << "seed " << seed << ", flow " << i;
  }
  ExpectFair(made, rates);
}

TEST(Links, WeightedRatesAreThoseOfProgressiveFilling) {
  for (uint64_t seed = 0; seed < 300; ++seed) Check(1 + seed % 40, 1 + seed * 7 % 90, seed);
}

TEST(Links, AThousandLinksToo) {
  for (uint64_t seed = 0; seed < 4; ++seed) Check(1024, 1024, seed);
}

}  // namespace
}  // namespace prophet::fluid
