#include "prophet/engine/fabric.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

namespace prophet::engine {
namespace {

std::vector<int64_t> Joined(std::span<const int64_t> first, std::span<const int64_t> second) {
  std::vector<int64_t> all(first.begin(), first.end());
  all.insert(all.end(), second.begin(), second.end());
  return all;
}

std::vector<int64_t> Counts(std::span<const int64_t> counts, size_t hosts) {
  return counts.empty() ? std::vector<int64_t>(hosts, 1)
                        : std::vector<int64_t>(counts.begin(), counts.end());
}

// Of a flow that stands for so many on a link.
int32_t Weight(int64_t flows) { return static_cast<int32_t>(flows) * fluid::kWhole; }

}  // namespace

static_assert(kMaxHosts <= fluid::kMaxWeight / fluid::kWhole);

Fabric::Fabric(std::span<const int64_t> sender_bps, std::span<const int64_t> receiver_bps,
               std::span<const int64_t> sender_counts, std::span<const int64_t> receiver_counts)
    : senders_(sender_bps.size()),
      receivers_(receiver_bps.size()),
      links_(Joined(sender_bps, receiver_bps)),
      uses_(senders_ + receivers_),
      sender_counts_(Counts(sender_counts, senders_)),
      receiver_counts_(Counts(receiver_counts, receivers_)),
      flows_(senders_ * receivers_) {
  for (size_t sender = 0; sender < senders_; ++sender) {
    for (size_t receiver = 0; receiver < receivers_; ++receiver) {
      links_.AddConnection(
          std::to_array({static_cast<int32_t>(sender), static_cast<int32_t>(senders_ + receiver)}),
          std::to_array({Weight(receiver_counts_[receiver]), Weight(sender_counts_[sender])}));
    }
  }
}

void Fabric::Send(const Message& message, TimeNs now) {
  const size_t number = message.sender * receivers_ + message.receiver;
  Flow& flow = flows_[number];
  if (flow.queue.empty()) flow.sequence = 0;
  flow.queue.push_back({uint64_t{message.urgency} << 32 | flow.sequence++, message});
  std::push_heap(flow.queue.begin(), flow.queue.end());
  if (flow.in_flight) return;
  StartNext(number, now);
  links_.Settle(now);
}

const Fabric::Message* Fabric::Advance(TimeNs now) {
  const size_t number = TakeNext(now);
  Flow& flow = flows_[number];
  const bool last = !std::exchange(flow.in_cost, false);
  if (last) {
    finished_ = flow.message;
    flow.in_flight = false;
    Count(uses_[finished_.sender], receiver_counts_[finished_.receiver]);
    Count(uses_[senders_ + finished_.receiver], sender_counts_[finished_.sender]);
    if (!flow.queue.empty()) StartNext(number, now);
  } else {
    StartBytes(number, now);
  }
  links_.Settle(now);
  return last ? &finished_ : nullptr;
}

void Fabric::Count(LinkUse& use, int64_t messages) const {
  use.bytes += messages * finished_.bytes;
  use.messages += messages;
}

size_t Fabric::TakeNext(TimeNs now) {
  const bool on_links = links_.next_ns() == now;
  if (at_once_.empty() || (on_links && links_.next_connection() < at_once_.front())) {
    return links_.Take();
  }
  std::pop_heap(at_once_.begin(), at_once_.end(), std::greater<>());
  const size_t flow = at_once_.back();
  at_once_.pop_back();
  return flow;
}

void Fabric::StartNext(size_t number, TimeNs now) {
  Flow& flow = flows_[number];
  std::pop_heap(flow.queue.begin(), flow.queue.end());
  flow.message = flow.queue.back().message;
  flow.queue.pop_back();
  flow.in_flight = true;
  flow.in_cost = flow.message.cost_ns > 0;
  if (!flow.in_cost) return StartBytes(number, now);
  links_.StartCost(number, flow.message.cost_ns, now);
}

void Fabric::StartBytes(size_t number, TimeNs now) {
  const int64_t bytes = flows_[number].message.bytes;
  if (bytes > 0 && links_.Limits(number)) return links_.StartBytes(number, bytes, now);
  at_once_.push_back(number);
  std::push_heap(at_once_.begin(), at_once_.end(), std::greater<>());
  at_once_ns_ = now;
}

}  // namespace prophet::engine
