// One worker's policy, and beside it a plain model of what is pending and in flight, which every
// answer is checked against: each item is sent once, first in its server's queue, when the policy's
// rule allows it and not before; nothing that may go is held back; where nothing is in flight for a
// server with work, something is sent, or a time is named at which it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "prophet/policy.h"
#include "rules.h"

namespace prophet {

// Thrown when the policy breaks a promise; says which.
struct Broken : std::logic_error {
  using std::logic_error::logic_error;
};

class CheckedPolicy {
 public:
  // How far ahead a policy may put the time at which it wants to be asked again.
  static constexpr TimeNs kNearNs = 10'000'000'000;

  CheckedPolicy(std::unique_ptr<Policy> policy, Rules rules, uint32_t servers);

  void OnReady(const Item& item, TimeNs now);
  // What is not in flight is passed on all the same: the policy has to ignore it.
  void OnAcked(uint64_t key, TimeNs now);
  void OnIteration(TimeNs now) { policy_->OnIteration(now); }
  // Asks until the policy has nothing more to send; writes what it sent. Returns when to ask again.
  std::optional<TimeNs> Ask(TimeNs now, std::vector<Item>& sent);

  bool in_flight(uint64_t key) const { return in_flight_.contains(key); }
  size_t pending() const { return pending_; }

 private:
  struct Arrival {
    int64_t rank;
    uint64_t order;  // the key, or with arrival order the number
    Item item;
    bool operator<(const Arrival& other) const {
      return rank != other.rank ? rank < other.rank : order < other.order;
    }
  };
  struct Server {
    std::set<Arrival> pending;
    ServerLoad load;
  };

  struct Sent {
    Item item;
    TimeNs at;
  };

  bool Starving() const;  // a server has work and nothing in flight
  void Send(const Item& item, TimeNs now);
  void CheckIdle() const;

  const std::unique_ptr<Policy> policy_;
  const Rules rules_;
  std::vector<Server> servers_;
  std::unordered_map<uint64_t, Sent> in_flight_;
  History history_;
  uint64_t arrivals_ = 0;
  size_t pending_ = 0;
  std::optional<TimeNs> must_send_at_;  // the policy waits although a server starves
};

}  // namespace prophet
