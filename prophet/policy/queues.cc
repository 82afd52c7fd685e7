#include "prophet/policy/queues.h"

namespace prophet {

void Queues::Add(const Item& item, int64_t rank) {
  Server& server = servers_[item.server];
  if (!server.active()) ++active_servers_;
  server.pending.emplace(Order{rank, item.key}, item);
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
  Server& server = servers_.at(item.server);
  --server.load.messages;
  server.load.bytes -= item.bytes;
  if (!server.active()) --active_servers_;
  return item;
}

ServerLoad Queues::load(uint32_t server) const {
  const auto found = servers_.find(server);
  return found == servers_.end() ? ServerLoad{} : found->second.load;
}

}  // namespace prophet
