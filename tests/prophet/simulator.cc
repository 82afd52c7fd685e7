#include "simulator.h"

#include <algorithm>
#include <map>
#include <queue>
#include <random>
#include <set>
#include <stdexcept>
#include <tuple>
#include <vector>

namespace prophet {
namespace {

class Simulation {
 public:
  Simulation(Policy& policy, const Rules& rules, uint64_t seed)
      : policy_(policy), rules_(rules), random_(seed) {}

  Outcome Run() {
    try {
      Plan();
      Loop();
    } catch (const std::logic_error& broken) {
      return {"at " + std::to_string(now_) + " ns: " + broken.what(), sent_};
    }
    return {"", sent_};
  }

 private:
  enum class Event { kReady, kAck, kIteration, kAsk };

  struct Scheduled {
    TimeNs time;
    uint64_t sequence;
    Event event;
    Item item;
    bool operator>(const Scheduled& other) const {
      return std::tie(time, sequence) > std::tie(other.time, other.sequence);
    }
  };

  static void Check(bool holds, const std::string& what) {
    if (!holds) throw std::logic_error(what);
  }

  int64_t Uniform(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  bool Chance(int percent) { return Uniform(1, 100) <= percent; }

  void At(TimeNs time, Event event, const Item& item = {}) {
    events_.push({time, sequence_++, event, item});
  }

  void Plan() {
    const int64_t servers = Uniform(1, 4);
    const int64_t tensors = Uniform(1, 15);
    const int64_t iterations = Uniform(1, 4);
    const bool tells_iterations = Chance(50);
    const int64_t burst_gap = Uniform(1, 5000);
    max_ack_delay_ = Uniform(1, 20000);
    TimeNs start = 0;
    for (int64_t iteration = 0; iteration < iterations; ++iteration) {
      if (tells_iterations && iteration > 0) At(start, Event::kIteration);
      TimeNs release = start;
      for (int64_t tensor = tensors; tensor-- > 0;) {
        if (Chance(40)) release += Uniform(0, burst_gap);
        if (Chance(5)) continue;  // missing this time
        const bool unranked = Chance(3);
        const auto priority = static_cast<int32_t>(unranked ? Uniform(0, 2) : -1 - tensor);
        const int64_t parts = Uniform(1, 6);
        for (int64_t part = 0; part < parts; ++part) {
          Item item{.key = static_cast<uint64_t>(tensor << 16 | part),
                    .server = static_cast<uint32_t>((tensor + part) % servers),
                    .priority = priority,
                    .bytes = static_cast<uint64_t>(Chance(5) ? 0 : Uniform(1, 3000))};
          At(release, Event::kReady, item);
          ++planned_;
        }
      }
      start = release + Uniform(0, 30000);
    }
  }

  void Loop() {
    while (!events_.empty()) {
      const Scheduled next = events_.top();
      events_.pop();
      now_ = next.time;
      switch (next.event) {
        case Event::kReady:
          OnReady(next.item);
          break;
        case Event::kAck:
          OnAck(next.item);
          break;
        case Event::kIteration:
          policy_.OnIteration(now_);
          break;
        case Event::kAsk:
          break;
      }
      // Simultaneous events are one: the driver asks when it has seen them all, or after each.
      if (!events_.empty() && events_.top().time == now_ && Chance(50)) continue;
      AskUntilNothing();
    }
    Check(sent_ == planned_, "deadlock: " + std::to_string(planned_ - sent_) + " never sent");
    Check(policy_.pending() == 0, "pending() is not 0 at the end");
  }

  void OnReady(const Item& item) {
    if (!busy_.insert(item.key).second) {
      deferred_.emplace(item.key, item);
      return;
    }
    pending_[item.server].push_back({arrivals_++, item});
    policy_.OnReady(item, now_);
  }

  void OnAck(const Item& item) {
    ServerLoad& load = load_[item.server];
    --load.messages;
    load.bytes -= item.bytes;
    policy_.OnAcked({.key = item.key}, now_);
    if (Chance(5)) policy_.OnAcked({.key = item.key}, now_);  // again
    if (Chance(5)) policy_.OnAcked({.key = ~uint64_t{0}}, now_);
    busy_.erase(item.key);
    const auto waiting = deferred_.find(item.key);
    if (waiting == deferred_.end()) return;
    const Item returning = waiting->second;
    deferred_.erase(waiting);
    OnReady(returning);
  }

  void AskUntilNothing() {
    for (;;) {
      size_t pending = 0;
      for (const auto& [server, items] : pending_) pending += items.size();
      Check(policy_.pending() == pending, "pending() is wrong");
      const Decision decision = policy_.Next(now_);
      if (decision.kind == Decision::Kind::kSend) {
        OnSend(decision.item);
        continue;
      }
      if (decision.kind == Decision::Kind::kWaitUntil) {
        Check(decision.ask_again_ns > now_, "waits for the past");
        At(decision.ask_again_ns, Event::kAsk);
        return;
      }
      for (const auto& [server, items] : pending_) {
        if (items.empty()) continue;
        const Item& head = Head(server)->item;
        Check(load_[server].messages > 0, "idle with nothing in flight for a server with work");
        Check(rules_.gate(head, load_[server]) != Gate::kOpen, "holds back what may go");
      }
      return;
    }
  }

  struct Arrival {
    uint64_t order;
    Item item;
  };
  using Arrivals = std::vector<Arrival>;

  bool Before(const Arrival& a, const Arrival& b) const {
    if (rules_.arrival_order) return a.order < b.order;
    if (a.item.priority != b.item.priority) return a.item.priority > b.item.priority;
    return a.item.key < b.item.key;
  }

  Arrivals::iterator Head(uint32_t server) {
    auto& items = pending_[server];
    return std::min_element(items.begin(), items.end(),
                            [this](const auto& a, const auto& b) { return Before(a, b); });
  }

  void OnSend(const Item& item) {
    const auto queue = pending_.find(item.server);
    Check(queue != pending_.end() && !queue->second.empty(), "sent to a server without work");
    const auto head = Head(item.server);
    Check(head->item == item, "sent what is not the first of its server's queue");
    Check(rules_.gate(item, load_[item.server]) != Gate::kClosed, "sent against its own rule");
    for (const auto& [server, items] : pending_) {
      if (items.empty() || server == item.server) continue;
      const auto other = Head(server);
      Check(rules_.gate(other->item, load_[server]) != Gate::kOpen || Before(*head, *other),
            "another server's head may go and comes first");
    }
    queue->second.erase(head);
    ServerLoad& load = load_[item.server];
    ++load.messages;
    load.bytes += item.bytes;
    ++sent_;
    At(now_ + Uniform(0, max_ack_delay_), Event::kAck, item);
  }

  Policy& policy_;
  const Rules& rules_;
  std::mt19937_64 random_;
  TimeNs now_ = 0;
  TimeNs max_ack_delay_ = 0;
  uint64_t sequence_ = 0;
  uint64_t arrivals_ = 0;
  size_t planned_ = 0;
  size_t sent_ = 0;
  std::priority_queue<Scheduled, std::vector<Scheduled>, std::greater<>> events_;
  std::set<uint64_t> busy_;                 // keys ready and not yet acknowledged
  std::multimap<uint64_t, Item> deferred_;  // what comes when its key is free
  std::map<uint32_t, Arrivals> pending_;    // the model of the policy's queues
  std::map<uint32_t, ServerLoad> load_;
};

}  // namespace

Outcome Simulate(Policy& policy, const Rules& rules, uint64_t seed) {
  return Simulation(policy, rules, seed).Run();
}

}  // namespace prophet
