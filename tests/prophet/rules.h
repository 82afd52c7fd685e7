// What each policy promises, said a second time and without its code: the order within a server's
// queue, and when the head of a queue may go.
#pragma once

#include <functional>
#include <string>

#include "prophet/policy.h"
#include "prophet/policy/queues.h"
#include "prophet/settings.h"
#include "random.h"

namespace prophet {

// What the policy's rule says of the head of a server's queue.
enum class Gate { kOpen, kClosed, kEither };

// What the policy can have learned from acknowledgements so far.
struct History {
  uint64_t acked_bytes = 0;
  uint64_t in_flight_bytes = 0;  // towards all servers
  TimeNs longest_delay_ns = 0;
};

struct Rules {
  bool arrival_order = false;  // else strict priority
  std::function<Gate(const Item& head, const ServerLoad& load, const History& history)> gate;
};

// Settings that the policy accepts, from tiny to larger than any load.
Settings RandomSettings(const std::string& policy, Random& random);

Rules RulesOf(const std::string& policy, const Settings& settings);

}  // namespace prophet
