#include "prophet/engine/fabric.h"

#include <algorithm>

namespace prophet::engine {
namespace {

bool AnyLimited(std::span<const int64_t> rates) {
  return std::any_of(rates.begin(), rates.end(), [](int64_t rate) { return rate > 0; });
}

}  // namespace

Fabric::Fabric(std::span<const int64_t> sender_bps, std::span<const int64_t> receiver_bps)
    : senders_(sender_bps.size()),
      receivers_(receiver_bps.size()),
      flows_(sender_bps.size() * receiver_bps.size()),
      ends_(flows_.size(), kNever),
      new_rate_(flows_.size()),
      coupled_(AnyLimited(sender_bps) && AnyLimited(receiver_bps)) {
  for (size_t sender = 0; sender < senders_.size(); ++sender) {
    senders_[sender].rate = sender_bps[sender];
  }
  for (size_t receiver = 0; receiver < receivers_.size(); ++receiver) {
    receivers_[receiver].rate = receiver_bps[receiver];
  }
}

void Fabric::Send(const Message& message, TimeNs now) {
  Flow& flow = FlowOf(message.sender, message.receiver);
  if (flow.queue.empty()) flow.sequence = 0;
  flow.queue.push_back({uint64_t{message.urgency} << 32 | flow.sequence++, message});
  std::push_heap(flow.queue.begin(), flow.queue.end());
  if (flow.phase != Phase::kIdle) return;
  StartNext(flow, now);
  Share(message.sender, message.receiver, now);
  FindNext();
}

const Fabric::Message* Fabric::Advance(TimeNs now) {
  Flow& flow = flows_[next_flow_];
  const size_t sender = flow.message.sender;
  const size_t receiver = flow.message.receiver;
  const bool last = flow.phase == Phase::kBytes;
  if (last) {
    finished_ = flow.message;
    for (Link* link : {&senders_[sender], &receivers_[receiver]}) {
      link->use.bytes += finished_.bytes;
      ++link->use.messages;
      Release(*link, now);
    }
    flow.phase = Phase::kIdle;
    flow.rate = 0;
    ends_[next_flow_] = kNever;
    if (!flow.queue.empty()) StartNext(flow, now);
  } else {
    StartBytes(flow, now);
  }
  Share(sender, receiver, now);
  FindNext();
  return last ? &finished_ : nullptr;
}

void Fabric::StartNext(Flow& flow, TimeNs now) {
  std::pop_heap(flow.queue.begin(), flow.queue.end());
  flow.message = flow.queue.back().message;
  flow.queue.pop_back();
  Occupy(senders_[flow.message.sender], now);
  if (flow.message.cost_ns == 0) return StartBytes(flow, now);
  flow.phase = Phase::kCost;
  flow.work = static_cast<uint64_t>(flow.message.cost_ns) *
              static_cast<uint64_t>(SenderRate(flow.message.sender));
  flow.settled = now;
  flow.rate = 0;
}

void Fabric::StartBytes(Flow& flow, TimeNs now) {
  Occupy(receivers_[flow.message.receiver], now);
  flow.phase = Phase::kBytes;
  flow.work = static_cast<uint64_t>(flow.message.bytes) * kWorkPerByte;
  flow.settled = now;
  flow.rate = 0;
  // Kept where nothing limits it.
  ends_[static_cast<size_t>(&flow - flows_.data())] = now;
}

void Fabric::Occupy(Link& link, TimeNs now) {
  if (link.users++ == 0) link.busy_since = now;
}

void Fabric::Release(Link& link, TimeNs now) {
  if (--link.users == 0) link.use.busy_ns += now - link.busy_since;
}

void Fabric::Share(size_t sender, size_t receiver, TimeNs now) {
  if (coupled_) return ShareAll(now);
  ShareSender(sender, now);
  ShareReceiver(receiver, now);
}

void Fabric::ShareSender(size_t sender, TimeNs now) {
  Flow* const flows = &FlowOf(sender, 0);
  int64_t sharing = 0;
  for (size_t i = 0; i < receivers_.size(); ++i) sharing += SharesSender(flows[i]);
  if (sharing == 0) return;
  const int64_t share = SenderRate(sender) / sharing;
  for (size_t i = 0; i < receivers_.size(); ++i) {
    if (SharesSender(flows[i])) SetRate(flows[i], share, now);
  }
}

void Fabric::ShareReceiver(size_t receiver, TimeNs now) {
  int64_t sharing = 0;
  for (size_t i = 0; i < senders_.size(); ++i) sharing += SharesReceiver(FlowOf(i, receiver));
  if (sharing == 0) return;
  const int64_t share = receivers_[receiver].rate / sharing;
  for (size_t i = 0; i < senders_.size(); ++i) {
    if (Flow& flow = FlowOf(i, receiver); SharesReceiver(flow)) SetRate(flow, share, now);
  }
}

// Fill all flows evenly; the link that is full first fixes the rates of its flows; go on with the
// others. Of several such links the first counts: senders, then receivers.
void Fabric::ShareAll(TimeNs now) {
  for (size_t i = 0; i < senders_.size(); ++i) {
    senders_[i].left = SenderRate(i);
    senders_[i].sharing = 0;
  }
  for (Link& link : receivers_) {
    link.left = link.rate;
    link.sharing = 0;
  }
  for (const Flow& flow : flows_) {
    if (SharesSender(flow)) ++senders_[flow.message.sender].sharing;
    if (SharesReceiver(flow)) ++receivers_[flow.message.receiver].sharing;
  }
  constexpr int64_t kOpen = -1;
  std::fill(new_rate_.begin(), new_rate_.end(), kOpen);
  const size_t links = senders_.size() + receivers_.size();
  for (;;) {
    size_t full = links;
    int64_t share = 0;
    for (size_t i = 0; i < links; ++i) {
      const Link& link = i < senders_.size() ? senders_[i] : receivers_[i - senders_.size()];
      if (link.sharing == 0) continue;
      const int64_t even = link.left / link.sharing;
      if (full == links || even < share) {
        full = i;
        share = even;
      }
    }
    if (full == links) break;
    const bool at_sender = full < senders_.size();
    const size_t count = at_sender ? receivers_.size() : senders_.size();
    for (size_t i = 0; i < count; ++i) {
      Flow& flow = at_sender ? FlowOf(full, i) : FlowOf(i, full - senders_.size());
      const auto index = static_cast<size_t>(&flow - flows_.data());
      const bool shares_sender = SharesSender(flow);
      const bool shares_receiver = SharesReceiver(flow);
      if (new_rate_[index] != kOpen || !(at_sender ? shares_sender : shares_receiver)) continue;
      new_rate_[index] = share;
      if (shares_sender) {
        senders_[flow.message.sender].left -= share;
        --senders_[flow.message.sender].sharing;
      }
      if (shares_receiver) {
        receivers_[flow.message.receiver].left -= share;
        --receivers_[flow.message.receiver].sharing;
      }
    }
  }
  for (size_t i = 0; i < flows_.size(); ++i) {
    if (new_rate_[i] != kOpen) SetRate(flows_[i], new_rate_[i], now);
  }
}

void Fabric::SetRate(Flow& flow, int64_t rate, TimeNs now) {
  if (flow.rate == rate) return;
  const uint64_t done =
      static_cast<uint64_t>(flow.rate) * static_cast<uint64_t>(now - flow.settled);
  flow.work -= std::min(flow.work, done);
  flow.settled = now;
  flow.rate = rate;
  const auto speed = static_cast<uint64_t>(rate);
  const uint64_t left_ns = flow.work / speed + (flow.work % speed != 0);
  ends_[static_cast<size_t>(&flow - flows_.data())] = now + static_cast<TimeNs>(left_ns);
}

void Fabric::FindNext() {
  const auto first = std::min_element(ends_.begin(), ends_.end());
  next_ns_ = *first;
  next_flow_ = static_cast<size_t>(first - ends_.begin());
}

}  // namespace prophet::engine
