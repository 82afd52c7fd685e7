// The random choices that make a scenario, and what its iterations consist of. See simulator.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "prophet/item.h"
#include "random.h"

namespace prophet {

struct Scenario {
  uint32_t servers = 1;
  size_t workers = 1;
  bool coupled = false;  // a key is free again, and with `barrier` an iteration over, when pulled
  bool barrier = false;  // an iteration starts when the one before is over
  bool still = false;    // the clock stands still
  int iteration_calls = 0;  // 0: never, 1: between iterations, 2: at odd times, too
  bool drop_and_resume = false;
  TimeNs burst_gap_ns = 0;
  TimeNs max_delay_ns = 0;
  TimeNs iteration_gap_ns = 0;
  int late_percent = 0;  // acknowledgements that are lost at first
  // What is pushed in each iteration, in the order of backward.
  std::vector<std::vector<Item>> iterations;
};

Scenario MakeScenario(Random& random);

}  // namespace prophet
