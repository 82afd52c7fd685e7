// prophet: strict priority, under windows of bytes in flight that shrink as something more urgent
// approaches: one per server, and one for the worker's link, which the servers share.
//
//   W = max(floor, min(window_max_bytes, most, B * (r_next - now)))
//
// r_next: the earliest predicted release of anything that outranks the head of the queue, for
//   whatever server. What is in flight can be delivered by then. None predicted: no limit by
//   it. Predicted but late: the floor.
// floor: window_floor_bytes or, if 0, what keeps the link busy and no more: one partition and the
//   larger of kAcksWaitBytes and B * (the shortest acknowledgement delay + 1 ms). The millisecond
//   is for late wake-ups; it also lets the window, and with it the estimate of B, grow where the
//   delay is all that limits it. kAcksWaitBytes, because the delay is longer while the server
//   sends: its acknowledgements have a connection of their own, but stand in the device's queue
//   behind what the kernel lets the answers' connection have there (two segments of 64 KiB, or on a
//   slow link no more than that carries in kLongestNs). The link needs one partition more while
//   several servers have work: their messages share it and end together, and while both
//   acknowledgements are on their way it must have something to carry.
// most: one partition (or two) and B * kLongestNs. A link is kept busy through later wake-ups than
//   the floor allows for, where it costs nothing; but what is in flight delays what is asked for
//   behind it, even with nothing more urgent to come.
// B: the payload bandwidth of the server's share, or of the link. bandwidth_bps if given, else
//   estimated from acknowledgements. Not known yet: W is window_max_bytes per server, and the
//   link's window is open.
//
// A message goes while less than W is in flight, so it may overshoot by less than itself. Without
// the link's window every server would have its own in flight when something urgent comes, and
// less urgent messages would take the link from more urgent ones of another server. A server with
// nothing in flight waits for the link's window, too, at most a second. What a slow server holds up
// counts against its own window only.
// With plan_bandwidth_bps and ready times, both the same in all workers, they send in one planned
// order instead of each by its own (planned_order.h). They come from the settings or a controller's
// plan, or else the workers agree on them (python/byteprophet/torch/retuning/common_order.py),
// unless common_order is 0.
// Unranked items (priority 0 and up) go first and wait for no window; their bytes count.
//
// With in_order 1 it behaves as fifo does: items go as they come, all at once, and the partition
// size that it prefers is fifo's. The controller asks for that where the processor limits the job
// and no order can gain (python/byteprophet/control/arrival_order.py). It goes on learning.
//
// Partitions that take a fast link next to no time cost more to handle than to carry. So the size
// that is preferred is the largest power of two that the link carries in kPartitionNs, from
// kUsualPartitionBytes to partition_max_bytes; where the link needs more than kLongestPartitionNs
// for the former, it is halved until it does not, down to kSmallestPartitionBytes. The bandwidth is
// an estimate: the size stays while a link that is faster or slower by kClearly would have it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>

#include "prophet/policy/link_load.h"
#include "prophet/policy/planned_order.h"
#include "prophet/policy/predicting.h"
#include "prophet/settings.h"

namespace prophet {

class ProphetPolicy final : public PredictingPolicy {
 public:
  static constexpr std::string_view kName = "prophet";
  static constexpr int64_t kUsualPartitionBytes = 256 << 10;
  static constexpr int64_t kSmallestPartitionBytes = 64 << 10;
  static constexpr uint64_t kAcksWaitBytes = 128 << 10;
  static constexpr auto kSettings = std::to_array<SettingSpec>({
      {"partition_bytes", kUsualPartitionBytes, 1, kMaxPartitionBytes},
      {"partition_max_bytes", 4194304, 0, kMaxPartitionBytes},  // 0: stays as it is
      {"window_floor_bytes", 0, 0, kMaxWindowBytes},
      {"window_max_bytes", 1048576, 1, kMaxWindowBytes},
      {"bandwidth_bps", 0, 0, kMaxBandwidthBps},       // 0: estimate
      {"plan_bandwidth_bps", 0, 0, kMaxBandwidthBps},  // 0: no planned order
      {"common_order", 1, 0, 1},                       // 1: workers agree on a planned order
      {"in_order", 0, 0, 1},                           // 1: as fifo
  });

  // Throws std::invalid_argument if the floor is above the maximum.
  explicit ProphetPolicy(const Settings& settings);

  void OnReady(const Item& item, TimeNs now) override;
  void OnIteration(TimeNs now) override;
  void SetReadyTimes(std::span<const ReadyTime> times) override;
  std::optional<int64_t> PreferredPartitionBytes() const override;
  std::optional<Learned> WhatItLearned() const override;
  void SetOrder(int64_t bandwidth_bps, std::span<const ReadyTime> times) override;
  Decision Next(TimeNs now) override;
  std::string_view name() const override { return kName; }

  // W of the server, for a head of this priority.
  uint64_t WindowBytes(uint32_t server, int32_t priority, TimeNs now) const;

 protected:
  int64_t RankOf(const Item& item) override;
  void Configure(const Settings& settings) override;
  bool MaySend(const Item& head, const ServerLoad& load, TimeNs now) override;
  void Sent(const Item& item, TimeNs now) override;
  void Acked(const Item& item, TimeNs now) override;

 private:
  static constexpr TimeNs kSlackNs = 1'000'000;
  static constexpr TimeNs kLongestNs = 4'000'000;
  static constexpr TimeNs kPartitionNs = 2'500'000;
  static constexpr TimeNs kLongestPartitionNs = 6'000'000;
  static constexpr double kClearly = 1.1;
  // How much longer than the link needs for it a message may take and still count as on the link.
  // Messages of other servers, sent later, may be before it: they share the link evenly.
  static constexpr int kOverdueFactor = 2;
  // The longest time that a server with nothing in flight is kept waiting for the link.
  static constexpr TimeNs kLongestHoldNs = 1'000'000'000;

  // `next`: when something more urgent is due.
  uint64_t ServerWindow(uint32_t server, std::optional<TimeNs> next, TimeNs now) const;
  // Of a server, or of the link, which carries `partitions` more than what the delay asks for.
  uint64_t Window(double bytes_per_ns, TimeNs delay_ns, int partitions, std::optional<TimeNs> next,
                  TimeNs now) const;
  // The order is planned with what the settings say, or else with what the workers agreed on.
  void PlanOrder();
  // A bandwidth alone is no order.
  bool HasPlan() const { return plan_bandwidth_bps_ > 0 && has_times_; }
  double FloorBytes(double bytes_per_ns, TimeNs delay_ns, int partitions) const;

  double partition_bytes_ = 0;
  bool in_order_ = false;
  int64_t arrivals_ = 0;      // the rank of the next item, if in_order_
  uint64_t floor_bytes_ = 0;  // 0: follow the link
  uint64_t max_bytes_ = 0;
  LinkLoad link_load_;
  bool agrees_ = false;
  int64_t plan_bandwidth_bps_ = 0;
  bool has_times_ = false;  // of a plan
  std::optional<Learned> agreed_;
  PlannedOrder order_;
  std::unordered_map<uint32_t, TimeNs> held_since_;  // servers that wait for the link
  std::optional<TimeNs> ask_again_ns_;  // during Next: when the first of them will be sent to
};

}  // namespace prophet
