// Shorthand for unit tests of policies.
#pragma once

#include <vector>

#include "prophet/policy.h"

namespace prophet {

// The keys that the policy sends at `now`, in order, until it has nothing more to send.
inline std::vector<uint64_t> Drain(Policy& policy, TimeNs now = 0) {
  std::vector<uint64_t> keys;
  for (;;) {
    const Decision decision = policy.Next(now);
    if (decision.kind != Decision::Kind::kSend) return keys;
    keys.push_back(decision.item.key);
  }
}

inline void Ack(Policy& policy, uint64_t key, TimeNs now = 0) { policy.OnAcked({.key = key}, now); }

// The key of a tensor's partition.
constexpr uint64_t Key(uint64_t tensor, uint64_t partition = 0) { return tensor << 16 | partition; }

using Keys = std::vector<uint64_t>;

}  // namespace prophet
