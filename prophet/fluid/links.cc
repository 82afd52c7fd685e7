#include "prophet/fluid/links.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

namespace prophet::fluid {

Links::Links(std::span<const int64_t> link_bps, std::span<const int64_t> burst_bytes)
    : links_(link_bps.size()) {
  for (size_t link = 0; link < links_.size(); ++link) {
    links_[link].rate = link_bps[link];
    if (burst_bytes.empty() || burst_bytes[link] == 0 || link_bps[link] == 0) continue;
    links_[link].most = static_cast<Work>(burst_bytes[link]) * kWorkPerByte;
    links_[link].saved = links_[link].most;
    bursts_ = true;
  }
}

void Links::AddConnection(std::span<const int32_t> route, std::span<const int32_t> weights) {
  const auto number = static_cast<uint32_t>(connections_.size());
  Connection& connection = connections_.emplace_back();
  connection.first_slot = static_cast<uint32_t>(slots_.size());
  bool by_later = false;
  for (size_t at = 0; at < route.size(); ++at) {
    const int32_t link = route[at];
    const bool is_first = at == 0;
    const Link& limit = links_[static_cast<size_t>(link)];
    slots_.push_back(
        {static_cast<uint32_t>(link), number, 0, weights.empty() ? kWhole : weights[at]});
    (is_first ? connection.by_first : by_later) |= limit.rate > 0;
    connection.burst_limited |= limit.rate > 0 && limit.most == 0;
  }
  connection.limited = connection.by_first || by_later;
  connection.by_first = connection.by_first && !by_later;
  connection.route_end = static_cast<uint32_t>(slots_.size());
  connection.phase_end = connection.first_slot;
}

Links::Work Links::Saved(const Link& link, TimeNs now) {
  if (link.users > 0) return link.saved;
  return std::min(link.most, link.saved + static_cast<Work>(now - link.saved_at) *
                                              static_cast<Work>(link.rate));
}

template <typename Do>
void Links::ForBursts(size_t number, const Do& act) {
  const Connection& connection = connections_[number];
  for (uint32_t slot = connection.first_slot; slot < connection.route_end; ++slot) {
    Link& link = links_[slots_[slot].link];
    if (link.most > 0) act(link);
  }
}

// All open flows get the same, as much as the first of them can use or the first of the links can
// give; then those that can get no more are left out. Less than a byte for each is left over.
void Links::TakeBursts(std::span<Beginning> flows, TimeNs now) {
  open_.clear();
  for (size_t at = 0; at < flows.size(); ++at) {
    bool has_bursts = false;
    ForBursts(flows[at].connection, [&](Link& link) {
      has_bursts = true;
      link.saved = Saved(link, now);
      link.saved_at = now;
      link.burst_left = static_cast<int64_t>(link.saved / kWorkPerByte);
      link.burst_open = 0;
    });
    if (has_bursts) open_.push_back(at);
  }
  while (!open_.empty()) {
    for (const size_t at : open_)
      ForBursts(flows[at].connection, [](Link& link) { ++link.burst_open; });
    int64_t each = std::numeric_limits<int64_t>::max();
    for (const size_t at : open_) {
      each = std::min(each, flows[at].bytes - flows[at].burst_bytes);
      ForBursts(flows[at].connection, [&](const Link& link) {
        each = std::min(each, link.burst_left / link.burst_open);
      });
    }
    for (const size_t at : open_) {
      flows[at].burst_bytes += each;
      ForBursts(flows[at].connection, [&](Link& link) {
        link.burst_left -= each;
        link.saved -= static_cast<Work>(each) * kWorkPerByte;
      });
    }
    std::erase_if(open_, [&](size_t at) {
      bool over = flows[at].burst_bytes == flows[at].bytes;
      ForBursts(flows[at].connection,
                [&](const Link& link) { over |= link.burst_left < link.burst_open; });
      return over;
    });
    for (const Beginning& flow : flows)
      ForBursts(flow.connection, [](Link& link) { link.burst_open = 0; });
  }
}

void Links::StartCost(size_t connection, TimeNs cost_ns, TimeNs now) {
  const Link& first = links_[slots_[connections_[connection].first_slot].link];
  const Work work = static_cast<Work>(cost_ns) * static_cast<Work>(RateOf(first));
  Start(connection, Phase::kCost, work, now);
}

void Links::StartBytes(size_t connection, int64_t bytes, TimeNs now) {
  Start(connection, Phase::kBytes, static_cast<Work>(bytes) * kWorkPerByte, now);
}

void Links::StartBurst(size_t connection, int64_t bytes, TimeNs now) {
  Start(connection, Phase::kBurst, static_cast<Work>(bytes) * kWorkPerByte, now);
}

void Links::Start(size_t number, Phase phase, Work work, TimeNs now) {
  Connection& connection = connections_[number];
  connection.work = work;
  connection.settled = now;
  const End end{kNever, static_cast<uint32_t>(number)};
  ends_.push_back(end);
  Lift(ends_.size() - 1, end);
  if (std::exchange(connection.over, false)) {
    if (connection.phase == phase || connection.by_first) {
      GoOn(connection, phase, now);
      return SetEnd(connection);
    }
    Leave(connection, now);
  }
  connection.rate = 0;
  connection.speed = 0;
  Enter(connection, phase, now);
}

size_t Links::Take() {
  const size_t number = ends_.front().connection;
  const End last = ends_.back();
  ends_.pop_back();
  if (!ends_.empty()) Sink(0, last);
  connections_[number].over = true;
  over_.push_back(static_cast<uint32_t>(number));
  return number;
}

void Links::Enter(Connection& connection, Phase phase, TimeNs now) {
  const bool cost = phase == Phase::kCost;
  connection.phase = phase;
  connection.phase_end = cost ? connection.first_slot + 1 : connection.route_end;
  connection.limits = 0;
  for (uint32_t slot = connection.first_slot; slot < connection.phase_end; ++slot) {
    Link& link = links_[slots_[slot].link];
    slots_[slot].position = kNotSharing;
    if (!Uses(connection, link)) continue;
    Use(link, now);
    if (!cost && link.rate == 0) continue;
    ++connection.limits;
    slots_[slot].position = static_cast<uint32_t>(link.sharing.size());
    link.sharing.push_back(slot);
    link.weight += slots_[slot].weight;
    Touch(slots_[slot].link);
  }
}

// With the rate that the phase before had.
void Links::GoOn(Connection& connection, Phase phase, TimeNs now) {
  if (std::exchange(connection.phase, phase) == phase) return;
  const bool cost = phase == Phase::kCost;
  for (uint32_t slot = connection.first_slot + 1; slot < connection.route_end; ++slot) {
    Link& link = links_[slots_[slot].link];
    slots_[slot].position = kNotSharing;
    cost ? Unuse(link, now) : Use(link, now);
  }
  connection.phase_end = cost ? connection.first_slot + 1 : connection.route_end;
}

void Links::Leave(Connection& connection, TimeNs now) {
  for (uint32_t slot = connection.first_slot; slot < connection.phase_end; ++slot) {
    Link& link = links_[slots_[slot].link];
    if (!Uses(connection, link)) continue;
    Unuse(link, now);
    const uint32_t position = slots_[slot].position;
    if (position == kNotSharing) continue;
    link.sharing[position] = link.sharing.back();
    slots_[link.sharing[position]].position = position;
    link.sharing.pop_back();
    link.weight -= slots_[slot].weight;
    Touch(slots_[slot].link);
  }
  connection.phase_end = connection.first_slot;
}

void Links::Leave(TimeNs now) {
  for (const uint32_t number : over_) {
    if (std::exchange(connections_[number].over, false)) Leave(connections_[number], now);
  }
  over_.clear();
}

void Links::Touch(uint32_t link) {
  if (links_[link].touched) return;
  links_[link].touched = true;
  touched_.push_back(link);
}

void Links::ShareTouched(TimeNs now) {
  ++round_;
  for (const uint32_t number : touched_) {
    Link& link = links_[number];
    link.touched = false;
    if (link.sharing.empty()) continue;
    link.whole = PartsOf(link) / link.weight;
  }
  for (const uint32_t number : touched_) {
    const Link& link = links_[number];
    if (link.gathered == round_ || link.sharing.empty() || ShareByItself(link, now)) continue;
    if (link.sharing.size() == 1) {
      Connection& connection = connections_[slots_[link.sharing.front()].connection];
      if (int64_t rate = 0; Alone(connection, rate)) {
        SetRate(connection, rate, now);
        continue;
      }
    }
    component_.clear();
    Gather(number);
    Fill(now);
  }
  touched_.clear();
}

// Whether nothing on the link shares another one; its flows' rates are set then.
bool Links::ShareByItself(const Link& link, TimeNs now) {
  for (const uint32_t shared : link.sharing) {
    if (connections_[slots_[shared].connection].limits > 1) return false;
  }
  for (const uint32_t shared : link.sharing) {
    SetRate(connections_[slots_[shared].connection], link.whole, now);
  }
  return true;
}

// Whether the phase has its links to itself, and then its rate.
bool Links::Alone(const Connection& connection, int64_t& rate) const {
  rate = std::numeric_limits<int64_t>::max();
  for (uint32_t slot = connection.first_slot; slot < connection.phase_end; ++slot) {
    if (slots_[slot].position == kNotSharing) continue;
    const Link& link = links_[slots_[slot].link];
    if (link.sharing.size() != 1) return false;
    rate = std::min(rate, PartsOf(link) / slots_[slot].weight);
  }
  return true;
}

// All links that flows join to this one.
void Links::Gather(uint32_t from) {
  links_[from].gathered = round_;
  component_.push_back(from);
  for (size_t next = 0; next < component_.size(); ++next) {
    for (const uint32_t shared : links_[component_[next]].sharing) {
      Connection& connection = connections_[slots_[shared].connection];
      if (connection.gathered == round_) continue;
      connection.gathered = round_;
      for (uint32_t slot = connection.first_slot; slot < connection.phase_end; ++slot) {
        Link& link = links_[slots_[slot].link];
        if (slots_[slot].position == kNotSharing || link.gathered == round_) continue;
        link.gathered = round_;
        component_.push_back(slots_[slot].link);
      }
    }
  }
}

// The even share of a link does not become less when another link, whose share is not larger, fixes
// flows of both. So what the heap has of a link is not too much, and is put right when it is first.
void Links::Fill(TimeNs now) {
  shares_.clear();
  for (const uint32_t number : component_) {
    Link& link = links_[number];
    link.left = PartsOf(link);
    link.open = link.weight;
    link.even = link.whole;
    shares_.push_back({link.even, number});
  }
  std::make_heap(shares_.begin(), shares_.end(), std::greater<>());
  while (!shares_.empty()) {
    std::pop_heap(shares_.begin(), shares_.end(), std::greater<>());
    Share& first = shares_.back();
    Link& full = links_[first.link];
    if (full.open == 0) {
      shares_.pop_back();
      continue;
    }
    if (full.even == kStale) full.even = full.left / full.open;
    if (full.even > first.even) {
      first.even = full.even;
      std::push_heap(shares_.begin(), shares_.end(), std::greater<>());
      continue;
    }
    shares_.pop_back();
    const int64_t share = full.even;
    for (const uint32_t shared : full.sharing) {
      Connection& connection = connections_[slots_[shared].connection];
      if (connection.fixed == round_) continue;
      connection.fixed = round_;
      for (uint32_t slot = connection.first_slot; slot < connection.phase_end; ++slot) {
        if (slots_[slot].position == kNotSharing) continue;
        Link& link = links_[slots_[slot].link];
        link.left -= share * slots_[slot].weight;
        link.open -= slots_[slot].weight;
        link.even = kStale;
      }
      SetRate(connection, share, now);
    }
  }
}

void Links::SetRate(Connection& connection, int64_t rate, TimeNs now) {
  if (connection.rate == rate) return;
  connection.rate = rate;
  SetSpeed(connection, now);
  SetEnd(connection);
}

void Links::SetSlowdown(size_t number, int32_t slowdown, TimeNs now) {
  Connection& connection = connections_[number];
  if (std::exchange(connection.slowdown, slowdown) == slowdown) return;
  SetSpeed(connection, now);
  const bool under_way = connection.phase_end != connection.first_slot && !connection.over;
  if (under_way && connection.rate > 0) SetEnd(connection);
}

void Links::SetSpeed(Connection& connection, TimeNs now) {
  const Work done =
      static_cast<Work>(connection.speed) * static_cast<Work>(now - connection.settled);
  connection.work -= std::min(connection.work, done);
  connection.settled = now;
  connection.speed = connection.rate;
  if (connection.slowdown == 0 || connection.rate == 0) return;
  const Work slowed =
      static_cast<Work>(connection.rate) * kWhole / static_cast<Work>(kWhole + connection.slowdown);
  connection.speed = std::max(int64_t{1}, static_cast<int64_t>(slowed));
}

void Links::SetEnd(const Connection& connection) {
  const auto speed = static_cast<uint64_t>(connection.speed);
  Work left_ns = 0;
  if (const auto narrow = static_cast<uint64_t>(connection.work); narrow == connection.work) {
    left_ns = narrow / speed + (narrow % speed != 0);
  } else {
    left_ns = connection.work / speed + (connection.work % speed != 0);
  }
  const size_t at = connection.in_ends;
  const End end{connection.settled + static_cast<TimeNs>(left_ns), ends_[at].connection};
  if (end < ends_[at]) {
    Lift(at, end);
  } else {
    Sink(at, end);
  }
}

void Links::Place(size_t at, const End& end) {
  ends_[at] = end;
  connections_[end.connection].in_ends = static_cast<uint32_t>(at);
}

void Links::Lift(size_t at, End end) {
  while (at > 0) {
    const size_t parent = (at - 1) / 2;
    if (ends_[parent] < end) break;
    Place(at, ends_[parent]);
    at = parent;
  }
  Place(at, end);
}

void Links::Sink(size_t at, End end) {
  for (;;) {
    size_t child = 2 * at + 1;
    if (child >= ends_.size()) break;
    if (child + 1 < ends_.size() && ends_[child + 1] < ends_[child]) ++child;
    if (end < ends_[child]) break;
    Place(at, ends_[child]);
    at = child;
  }
  Place(at, end);
}

}  // namespace prophet::fluid
