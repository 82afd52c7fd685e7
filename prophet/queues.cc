#include "prophet/queues.h"

namespace prophet {

void Queues::Add(const Item& item, int64_t rank) {
  servers_[item.server].pending.emplace(Order{rank, item.key}, item);
  ++pending_;
}

Item Queues::Take(Server& server) {
  const auto head = server.pending.begin();
  const Item item = head->second;
  server.pending.erase(head);
  --pending_;
  ++server.load.messages;
  server.load.bytes += item.bytes;
  in_flight_.emplace(item.key, item);
  return item;
}

std::optional<Item> Queues::Ack(uint64_t key) {
  const auto found = in_flight_.find(key);
  if (found == in_flight_.end()) return std::nullopt;
  const Item item = found->second;
  in_flight_.erase(found);
  ServerLoad& load = servers_.at(item.server).load;
  --load.messages;
  load.bytes -= item.bytes;
  return item;
}

ServerLoad Queues::load(uint32_t server) const {
  const auto found = servers_.find(server);
  return found == servers_.end() ? ServerLoad{} : found->second.load;
}

size_t Queues::active_servers() const {
  size_t active = 0;
  for (const auto& [id, server] : servers_) {
    if (!server.pending.empty() || server.load.messages > 0) ++active;
  }
  return active;
}

}  // namespace prophet
