#include "prophet/policy/prophet.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "prophet/policy/fifo.h"

namespace prophet {

ProphetPolicy::ProphetPolicy(const Settings& settings) : PredictingPolicy(kSettings, settings) {
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
  in_order_ = settings.at("in_order") == 1;
  floor_bytes_ = static_cast<uint64_t>(floor_bytes);
  max_bytes_ = static_cast<uint64_t>(max_bytes);
  GiveBandwidth(settings.at("bandwidth_bps"));
  agrees_ = settings.at("common_order") == 1;
  plan_bandwidth_bps_ = settings.at("plan_bandwidth_bps");
  PlanOrder();
}

void ProphetPolicy::PlanOrder() {
  int64_t bandwidth_bps = plan_bandwidth_bps_;
  if (!HasPlan() && agrees_ && agreed_) {
    if (bandwidth_bps == 0) bandwidth_bps = agreed_->bandwidth_bps;
    order_.SetReadyTimes(agreed_->times);
  }
  order_.SetBandwidth(static_cast<double>(bandwidth_bps) / kBitsPerByteNs);
}

void ProphetPolicy::OnReady(const Item& item, TimeNs now) {
  order_.OnReady(item, now);
  PredictingPolicy::OnReady(item, now);
}

void ProphetPolicy::OnIteration(TimeNs now) {
  PredictingPolicy::OnIteration(now);
  order_.OnIteration(LinkBytesPerNs());
}

void ProphetPolicy::SetReadyTimes(std::span<const ReadyTime> times) {
  PredictingPolicy::SetReadyTimes(times);
  order_.SetReadyTimes(times);
  has_times_ |= !times.empty();
}

std::optional<int64_t> ProphetPolicy::PreferredPartitionBytes() const {
  const int64_t max_bytes = settings().at("partition_max_bytes");
  if (max_bytes == 0) return std::nullopt;
  if (in_order_) return std::min(FifoPolicy::kPartitionBytes, max_bytes);
  const auto bytes_per_ns = LinkBytesPerNs();
  if (!bytes_per_ns) return std::nullopt;
  const auto preferred = [&](double link_bytes_per_ns) {
    const auto carried_ns = [&](int64_t bytes) {
      return static_cast<double>(bytes) / link_bytes_per_ns;
    };
    int64_t bytes = kUsualPartitionBytes;
    while (bytes > kSmallestPartitionBytes && carried_ns(bytes) > kLongestPartitionNs) bytes /= 2;
    while (bytes < max_bytes && carried_ns(2 * bytes) <= kPartitionNs) bytes *= 2;
    return std::min(bytes, max_bytes);
  };
  return std::clamp(static_cast<int64_t>(partition_bytes_), preferred(*bytes_per_ns / kClearly),
                    preferred(*bytes_per_ns * kClearly));
}

std::optional<Learned> ProphetPolicy::WhatItLearned() const {
  const auto bytes_per_ns = LinkBytesPerNs();
  if (!agrees_ || in_order_ || !bytes_per_ns) return std::nullopt;
  return Learned{.bandwidth_bps = std::llround(*bytes_per_ns * kBitsPerByteNs),
                 .has_plan = HasPlan(),
                 .times = ForecastTimes()};
}

void ProphetPolicy::SetOrder(int64_t bandwidth_bps, std::span<const ReadyTime> times) {
  agreed_ = Learned{.bandwidth_bps = bandwidth_bps, .times = {times.begin(), times.end()}};
  PlanOrder();
}

int64_t ProphetPolicy::RankOf(const Item& item) {
  return in_order_ ? arrivals_++ : order_.RankOf(item);
}

Decision ProphetPolicy::Next(TimeNs now) {
  link_load_.Expire(now);
  ask_again_ns_.reset();
  const Decision decision = PredictingPolicy::Next(now);
  if (decision.kind == Decision::Kind::kSend || !ask_again_ns_) return decision;
  return {.kind = Decision::Kind::kWaitUntil, .ask_again_ns = *ask_again_ns_};
}

uint64_t ProphetPolicy::WindowBytes(uint32_t server, int32_t priority, TimeNs now) const {
  return ServerWindow(server, NextAbove(priority), now);
}

uint64_t ProphetPolicy::ServerWindow(uint32_t server, std::optional<TimeNs> next,
                                     TimeNs now) const {
  const auto bytes_per_ns = BytesPerNs(server);
  if (!bytes_per_ns) return max_bytes_;
  return Window(*bytes_per_ns, DelayNs(server), 1, next, now);
}

uint64_t ProphetPolicy::Window(double bytes_per_ns, TimeNs delay_ns, int partitions,
                               std::optional<TimeNs> next, TimeNs now) const {
  const double most_bytes = partitions * partition_bytes_ + bytes_per_ns * double{kLongestNs};
  double window = std::min(static_cast<double>(max_bytes_), most_bytes);
  if (next) window = std::min(window, bytes_per_ns * static_cast<double>(*next - now));
  return static_cast<uint64_t>(std::max(window, FloorBytes(bytes_per_ns, delay_ns, partitions)));
}

double ProphetPolicy::FloorBytes(double bytes_per_ns, TimeNs delay_ns, int partitions) const {
  if (floor_bytes_ > 0) return static_cast<double>(floor_bytes_);
  const double until_heard_bytes = bytes_per_ns * static_cast<double>(delay_ns + kSlackNs);
  const double acks_wait_bytes =
      std::min(double{kAcksWaitBytes}, bytes_per_ns * double{kLongestNs});
  return partitions * partition_bytes_ + std::max(acks_wait_bytes, until_heard_bytes);
}

bool ProphetPolicy::MaySend(const Item& head, const ServerLoad& load, TimeNs now) {
  if (in_order_ || IsUnranked(head)) return true;
  const auto next = NextAbove(head.priority);
  if (load.bytes >= ServerWindow(head.server, next, now)) return false;
  const auto bytes_per_ns = LinkBytesPerNs();
  if (!bytes_per_ns || queues().active_servers() < 2) return true;
  const TimeNs delay_ns = LongestDelayNs();
  if (link_load_.bytes() < Window(*bytes_per_ns, delay_ns, 2, next, now)) return true;
  if (load.messages > 0) return false;
  const TimeNs latest = held_since_.emplace(head.server, now).first->second + kLongestHoldNs;
  if (latest <= now) return true;
  const double floor_bytes = FloorBytes(*bytes_per_ns, delay_ns, 2);
  const TimeNs at = std::min(latest, link_load_.BelowAt(static_cast<uint64_t>(floor_bytes)));
  ask_again_ns_ = std::min(at, ask_again_ns_.value_or(at));
  return false;
}

void ProphetPolicy::Sent(const Item& item, TimeNs now) {
  held_since_.erase(item.server);
  const auto bytes_per_ns = LinkBytesPerNs();
  if (in_order_ || !bytes_per_ns) return;
  const double link_ns = static_cast<double>(link_load_.bytes() + item.bytes) / *bytes_per_ns;
  const auto due_ns = std::min(kOverdueFactor * link_ns + static_cast<double>(DelayNs(item.server)),
                               static_cast<double>(kLongestHoldNs));
  link_load_.OnSent(item.key, item.bytes, now + static_cast<TimeNs>(due_ns) + kSlackNs);
}

void ProphetPolicy::Acked(const Item& item, TimeNs /*now*/) { link_load_.OnAcked(item.key); }

}  // namespace prophet
