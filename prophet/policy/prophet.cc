#include "prophet/policy/prophet.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace prophet {

ProphetPolicy::ProphetPolicy(const Settings& settings) : QueuedPolicy(kSettings, settings) {
  Configure(settings);
}

void ProphetPolicy::Configure(const Settings& settings) {
  const int64_t floor_bytes = settings.at("window_floor_bytes");
  const int64_t max_bytes = settings.at("window_max_bytes");
  if (floor_bytes > max_bytes) {
    throw std::invalid_argument(
        "scheduler prophet: setting window_floor_bytes=" + std::to_string(floor_bytes) +
        " must not be above window_max_bytes=" + std::to_string(max_bytes));
  }
  partition_bytes_ = static_cast<double>(settings.at("partition_bytes"));
  floor_bytes_ = static_cast<uint64_t>(floor_bytes);
  max_bytes_ = static_cast<uint64_t>(max_bytes);
  bandwidth_bps_ = static_cast<double>(settings.at("bandwidth_bps"));
}

void ProphetPolicy::OnReady(const Item& item, TimeNs now) {
  if (!IsUnranked(item)) forecast_.OnReady(item.key, item.priority, now);
  QueuedPolicy::OnReady(item, now);
}

void ProphetPolicy::OnAcked(const Item& item, TimeNs now) {
  const auto retired = Retire(item.key);
  if (!retired) return;
  const auto sent = sent_ns_.extract(item.key);
  if (!sent) return;
  const bool more_in_flight = queues().load(retired->server).messages > 0;
  bandwidth_[retired->server].OnAcked(retired->bytes, sent.mapped(), more_in_flight, now);
  delay_[retired->server].OnAcked(now - sent.mapped());
}

Decision ProphetPolicy::Next(TimeNs now) {
  const Decision decision = QueuedPolicy::Next(now);
  if (decision.kind == Decision::Kind::kSend) sent_ns_[decision.item.key] = now;
  return decision;
}

void ProphetPolicy::OnIteration(TimeNs /*now*/) { forecast_.OnIteration(); }

void ProphetPolicy::SetReadyTimes(std::span<const ReadyTime> times) { forecast_.Set(times); }

uint64_t ProphetPolicy::WindowBytes(uint32_t server, int32_t priority, TimeNs now) const {
  const auto bytes_per_ns = BytesPerNs(server);
  if (!bytes_per_ns) return max_bytes_;
  auto window = static_cast<double>(max_bytes_);
  if (const auto next = forecast_.NextAbove(priority)) {
    window = std::min(window, *bytes_per_ns * static_cast<double>(*next - now));
  }
  return static_cast<uint64_t>(std::max(window, FloorBytes(server, *bytes_per_ns)));
}

double ProphetPolicy::FloorBytes(uint32_t server, double bytes_per_ns) const {
  if (floor_bytes_ > 0) return static_cast<double>(floor_bytes_);
  const auto delay = delay_.find(server);
  const TimeNs delay_ns = delay == delay_.end() ? 0 : delay->second.shortest_ns().value_or(0);
  return partition_bytes_ + bytes_per_ns * (static_cast<double>(delay_ns) + kSlackNs);
}

bool ProphetPolicy::MaySend(const Item& head, const ServerLoad& load, TimeNs now) {
  return IsUnranked(head) || load.bytes < WindowBytes(head.server, head.priority, now);
}

std::optional<double> ProphetPolicy::BytesPerNs(uint32_t server) const {
  if (bandwidth_bps_ > 0) {
    constexpr double kBitsPerByteNs = 8e9;
    const auto sharing = static_cast<double>(std::max<size_t>(1, queues().active_servers()));
    return bandwidth_bps_ / kBitsPerByteNs / sharing;
  }
  const auto found = bandwidth_.find(server);
  return found == bandwidth_.end() ? std::nullopt : found->second.bytes_per_ns();
}

}  // namespace prophet
