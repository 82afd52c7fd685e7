// prophet: strict priority per server, under a window of bytes in flight per server that shrinks
// as something more urgent approaches:
//
//   W = max(window_floor_bytes, min(window_max_bytes, B * (r_next - now)))
//
// r_next: the earliest predicted release of anything that outranks the head of the queue, for
//   whatever server: all share the worker's link. What is in flight can be delivered by then.
//   None predicted: W is window_max_bytes. Predicted but late: window_floor_bytes.
// window_floor_bytes: if 0, what keeps the link busy and no more: one partition and B * (the
//   shortest acknowledgement delay + 1 ms). The millisecond is for late wake-ups; it also lets the
//   window, and with it the estimate of B, grow where the delay is all that limits it.
// B: this server's share of the payload bandwidth: bandwidth_bps over the number of servers with
//   work, if given, else estimated from acknowledgements. Not known yet: W is window_max_bytes.
//
// A message goes while less than W is in flight, so it may overshoot by less than itself, and
// always goes when nothing is in flight: the policy never idles on purpose. Unranked items
// (priority 0 and up) go first and wait for no window; their bytes and messages count.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>

#include "prophet/bandwidth.h"
#include "prophet/delay.h"
#include "prophet/forecast.h"
#include "prophet/policy/queued.h"
#include "prophet/settings.h"

namespace prophet {

class ProphetPolicy final : public QueuedPolicy {
 public:
  static constexpr std::string_view kName = "prophet";
  static constexpr auto kSettings = std::to_array<SettingSpec>({
      {"partition_bytes", 262144, 1, kMaxPartitionBytes},
      {"window_floor_bytes", 0, 0, kMaxWindowBytes},
      {"window_max_bytes", 1048576, 1, kMaxWindowBytes},
      {"bandwidth_bps", 0, 0, int64_t{1} << 50},  // 0: estimate
  });

  // Throws std::invalid_argument if the floor is above the maximum.
  explicit ProphetPolicy(const Settings& settings);

  void OnReady(const Item& item, TimeNs now) override;
  void OnAcked(const Item& item, TimeNs now) override;
  void OnIteration(TimeNs now) override;
  Decision Next(TimeNs now) override;
  void SetReadyTimes(std::span<const ReadyTime> times) override;
  std::string_view name() const override { return kName; }

  // W for a head of this priority.
  uint64_t WindowBytes(uint32_t server, int32_t priority, TimeNs now) const;

 protected:
  void Configure(const Settings& settings) override;
  bool MaySend(const Item& head, const ServerLoad& load, TimeNs now) override;

 private:
  static constexpr double kSlackNs = 1e6;

  std::optional<double> BytesPerNs(uint32_t server) const;
  double FloorBytes(uint32_t server, double bytes_per_ns) const;

  double partition_bytes_ = 0;
  uint64_t floor_bytes_ = 0;  // 0: follow the link
  uint64_t max_bytes_ = 0;
  double bandwidth_bps_ = 0;  // 0: estimate
  ReadyForecast forecast_;
  std::unordered_map<uint32_t, BandwidthEstimate> bandwidth_;  // by server
  std::unordered_map<uint32_t, DelayEstimate> delay_;          // by server
  std::unordered_map<uint64_t, TimeNs> sent_ns_;               // of what is in flight, by key
};

}  // namespace prophet
