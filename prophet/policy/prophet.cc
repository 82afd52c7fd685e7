#include "prophet/policy/prophet.h"

#include <stdexcept>
#include <string>

namespace prophet {

ProphetPolicy::ProphetPolicy(const Settings& settings)
    : floor_bytes_(static_cast<uint64_t>(settings.at("window_floor_bytes"))),
      max_bytes_(static_cast<uint64_t>(settings.at("window_max_bytes"))),
      bandwidth_bps_(static_cast<double>(settings.at("bandwidth_bps"))) {
  if (floor_bytes_ > max_bytes_) {
    throw std::invalid_argument(
        "scheduler prophet: setting window_floor_bytes=" + std::to_string(floor_bytes_) +
        " must not be above window_max_bytes=" + std::to_string(max_bytes_));
  }
}

void ProphetPolicy::OnReady(const Item& item, TimeNs now) {
  if (!IsUnranked(item)) forecast_.OnReady(item.key, item.priority, now);
  QueuedPolicy::OnReady(item, now);
}

void ProphetPolicy::OnAcked(const Item& item, TimeNs now) {
  const auto retired = Retire(item.key);
  if (!retired) return;
  const bool more_in_flight = queues().load(retired->server).messages > 0;
  bandwidth_[retired->server].OnAcked(retired->bytes, more_in_flight, now);
}

void ProphetPolicy::OnIteration(TimeNs /*now*/) { forecast_.OnIteration(); }

void ProphetPolicy::SetReadyTimes(std::span<const ReadyTime> times) { forecast_.Set(times); }

uint64_t ProphetPolicy::WindowBytes(uint32_t server, int32_t priority, TimeNs now) const {
  const auto next = forecast_.NextAbove(priority);
  if (!next) return max_bytes_;
  const auto bytes_per_ns = BytesPerNs(server);
  if (!bytes_per_ns) return max_bytes_;
  const double window = *bytes_per_ns * static_cast<double>(*next - now);
  if (window <= static_cast<double>(floor_bytes_)) return floor_bytes_;
  if (window >= static_cast<double>(max_bytes_)) return max_bytes_;
  return static_cast<uint64_t>(window);
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
