#include "prophet/policy/predicting.h"

#include <algorithm>

namespace prophet {

void PredictingPolicy::OnReady(const Item& item, TimeNs now) {
  if (!IsUnranked(item)) forecast_.OnReady(item.key, item.priority, now);
  QueuedPolicy::OnReady(item, now);
}

void PredictingPolicy::OnAcked(const Item& item, TimeNs now) {
  const auto retired = Retire(item.key);
  if (!retired) return;
  if (const auto found = sent_ns_.extract(item.key)) {
    const TimeNs sent = found.mapped();
    Server& server = servers_[retired->server];
    const bool more_in_flight = queues().load(retired->server).messages > 0;
    server.bandwidth.OnAcked(retired->bytes, sent, more_in_flight, now);
    server.delay.OnAcked(now - sent);
    longest_delay_ns_ = 0;
    for (const auto& [id, each] : servers_) {
      longest_delay_ns_ = std::max(longest_delay_ns_, each.delay.shortest_ns().value_or(0));
    }
    link_.OnAcked(retired->bytes, sent, queues().in_flight() > 0, now);
  }
  Acked(*retired, now);
}

void PredictingPolicy::OnIteration(TimeNs /*now*/) { forecast_.OnIteration(); }

Decision PredictingPolicy::Next(TimeNs now) {
  const Decision decision = QueuedPolicy::Next(now);
  if (decision.kind == Decision::Kind::kSend) {
    sent_ns_[decision.item.key] = now;
    Sent(decision.item, now);
  }
  return decision;
}

void PredictingPolicy::SetReadyTimes(std::span<const ReadyTime> times) { forecast_.Set(times); }

void PredictingPolicy::GiveBandwidth(int64_t bandwidth_bps) {
  given_bytes_per_ns_.reset();
  if (bandwidth_bps > 0) given_bytes_per_ns_ = static_cast<double>(bandwidth_bps) / kBitsPerByteNs;
}

std::optional<double> PredictingPolicy::LinkBytesPerNs() const {
  return given_bytes_per_ns_ ? given_bytes_per_ns_ : link_.bytes_per_ns();
}

std::optional<double> PredictingPolicy::BytesPerNs(uint32_t server) const {
  if (given_bytes_per_ns_) {
    return *given_bytes_per_ns_ /
           static_cast<double>(std::max<size_t>(1, queues().active_servers()));
  }
  const auto found = servers_.find(server);
  return found == servers_.end() ? std::nullopt : found->second.bandwidth.bytes_per_ns();
}

TimeNs PredictingPolicy::DelayNs(uint32_t server) const {
  const auto found = servers_.find(server);
  return found == servers_.end() ? 0 : found->second.delay.shortest_ns().value_or(0);
}

}  // namespace prophet
