// A virtual clock and a link that drive one policy through a random job, and check every answer
// against a plain model of what is pending and in flight.
//
// The job: several iterations of tensors cut into partitions, each partition on one server. Some
// tensors are missing from an iteration, some items are unranked, releases come in bursts,
// acknowledgements late and out of order, with unknown ones among them. A key returns only after
// it was acknowledged; iterations may overlap; OnIteration may never be called.
#ifndef TESTS_PROPHET_SIMULATOR_H_
#define TESTS_PROPHET_SIMULATOR_H_

#include <cstdint>
#include <functional>
#include <string>

#include "prophet/policy.h"
#include "prophet/queues.h"

namespace prophet {

// What the policy's rule says of the head of a server's queue.
enum class Gate { kOpen, kClosed, kEither };

struct Rules {
  bool arrival_order = false;  // else strict priority
  std::function<Gate(const Item& head, const ServerLoad& load)> gate;
};

struct Outcome {
  std::string failure;  // empty: everything held
  size_t sent = 0;
};

Outcome Simulate(Policy& policy, const Rules& rules, uint64_t seed);

}  // namespace prophet

#endif  // TESTS_PROPHET_SIMULATOR_H_
