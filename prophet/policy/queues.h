// Pending items, ordered, one queue per server, and the table of what is in flight.
//
// Invariants: an item is in exactly one place, pending or in flight; each server's load is the
// count and the bytes of its entries in the in-flight table. A key given twice is not lost: both
// copies are sent, and each acknowledgement retires one.
// Cost: log n in the pending items of a server, linear in the number of servers.
// Thread safety: none, like the policy that owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "prophet/item.h"

namespace prophet {

// What one server has been sent and has not acknowledged.
struct ServerLoad {
  size_t messages = 0;
  uint64_t bytes = 0;
};

class Queues {
 public:
  // Smaller ranks go first; ties: the smaller key.
  void Add(const Item& item, int64_t rank);

  // Puts in flight the best-ranked head of a queue for which `may_send(head, load)` holds and
  // returns it; nullopt if there is none. Never looks past a head.
  template <typename MaySend>
  std::optional<Item> TakeFirst(const MaySend& may_send) {
    Server* best = nullptr;
    for (auto& [id, server] : servers_) {
      if (server.pending.empty()) continue;
      const auto& [order, head] = *server.pending.begin();
      if (best != nullptr && best->pending.begin()->first <= order) continue;
      if (may_send(head, server.load)) best = &server;
    }
    if (best == nullptr) return std::nullopt;
    return Take(*best);
  }

  // Retires an item and returns it; nullopt if `key` is not in flight.
  std::optional<Item> Ack(uint64_t key);

  ServerLoad load(uint32_t server) const;
  // Servers with anything pending or in flight.
  size_t active_servers() const { return active_servers_; }
  size_t pending() const { return pending_; }
  size_t in_flight() const { return in_flight_.size(); }

 private:
  using Order = std::pair<int64_t, uint64_t>;  // rank, key
  struct Server {
    std::multimap<Order, Item> pending;
    ServerLoad load;
    bool active() const { return !pending.empty() || load.messages > 0; }
  };

  Item Take(Server& server);

  size_t pending_ = 0;
  size_t active_servers_ = 0;
  std::map<uint32_t, Server> servers_;
  std::unordered_multimap<uint64_t, Item> in_flight_;
};

}  // namespace prophet
