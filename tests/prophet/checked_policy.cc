#include "checked_policy.h"

#include <algorithm>
#include <utility>

namespace prophet {
namespace {

void Check(bool holds, const char* what) {
  if (!holds) throw Broken(what);
}

}  // namespace

CheckedPolicy::CheckedPolicy(std::unique_ptr<Policy> policy, Rules rules, uint32_t servers)
    : policy_(std::move(policy)), rules_(std::move(rules)), servers_(servers) {}

void CheckedPolicy::OnReady(const Item& item, TimeNs now) {
  const auto number = static_cast<int64_t>(arrivals_++);
  const int64_t rank = rules_.arrival_order ? number : -int64_t{item.priority};
  servers_[item.server].pending.insert({rank, item.key, item});
  ++pending_;
  policy_->OnReady(item, now);
}

void CheckedPolicy::OnAcked(uint64_t key, TimeNs now) {
  const auto found = in_flight_.find(key);
  if (found != in_flight_.end()) {
    const auto& [item, sent_at] = found->second;
    ServerLoad& load = servers_[item.server].load;
    --load.messages;
    load.bytes -= item.bytes;
    history_.acked_bytes += item.bytes;
    history_.in_flight_bytes -= item.bytes;
    history_.longest_delay_ns = std::max(history_.longest_delay_ns, now - sent_at);
    in_flight_.erase(found);
  }
  policy_->OnAcked({.key = key}, now);
}

std::optional<TimeNs> CheckedPolicy::Ask(TimeNs now, std::vector<Item>& sent) {
  const bool must_send = must_send_at_ && now >= *must_send_at_;
  must_send_at_.reset();
  for (bool first = true;; first = false) {
    Check(policy_->pending() == pending_, "pending() is wrong");
    const Decision decision = policy_->Next(now);
    if (decision.kind == Decision::Kind::kSend) {
      Send(decision.item, now);
      sent.push_back(decision.item);
      continue;
    }
    Check(!first || !must_send || !Starving(), "does not send at the time that it named");
    if (decision.kind == Decision::Kind::kIdle) {
      CheckIdle();
      return std::nullopt;
    }
    Check(decision.ask_again_ns > now, "waits for the past");
    Check(decision.ask_again_ns - now <= kNearNs, "waits too long");
    if (Starving()) must_send_at_ = decision.ask_again_ns;
    return decision.ask_again_ns;
  }
}

bool CheckedPolicy::Starving() const {
  return std::any_of(servers_.begin(), servers_.end(), [](const Server& server) {
    return !server.pending.empty() && server.load.messages == 0;
  });
}

void CheckedPolicy::Send(const Item& item, TimeNs now) {
  Check(item.server < servers_.size(), "sent to a server that does not exist");
  Server& server = servers_[item.server];
  Check(!server.pending.empty(), "sent to a server without work");
  const Arrival head = *server.pending.begin();
  Check(head.item == item, "sent what is not the first of its server's queue");
  Check(rules_.gate(item, server.load, history_) != Gate::kClosed, "sent against its own rule");
  for (const Server& other : servers_) {
    if (&other == &server || other.pending.empty() || !(*other.pending.begin() < head)) continue;
    Check(rules_.gate(other.pending.begin()->item, other.load, history_) != Gate::kOpen,
          "another server's head may go and comes first");
  }
  server.pending.erase(server.pending.begin());
  --pending_;
  ++server.load.messages;
  server.load.bytes += item.bytes;
  history_.in_flight_bytes += item.bytes;
  in_flight_.emplace(item.key, Sent{item, now});
}

void CheckedPolicy::CheckIdle() const {
  for (const Server& server : servers_) {
    if (server.pending.empty()) continue;
    Check(server.load.messages > 0, "idle with nothing in flight for a server with work");
    Check(rules_.gate(server.pending.begin()->item, server.load, history_) != Gate::kOpen,
          "holds back what may go");
  }
}

}  // namespace prophet
