// The payload bandwidth towards one server, from its acknowledgements.
//
// While something is under way, a message takes the link's time from the acknowledgement before
// its own, or from one path delay after it was sent, whichever is later. So idle time, the delay
// before the first acknowledgement of a busy interval, and the pauses of a window that is too small
// for the path are left out: what is measured is the link, not the load. Spans are added up to
// samples of 2 MiB, or of 50 ms on a slow link; the estimate is the median of the last 15: a burst
// of late acknowledgements does not move it, and a changed link is followed within 16 MiB, or
// within half a second of traffic where that is longer. (Recorded jobs on a busy machine: samples
// half as large, seven of them, were off by up to twice as much.)
//
// The path delay is the shortest time, lately, from sending the first message of a busy interval to
// its acknowledgement, less the time of its bytes; only where these take less than half of it, as
// what a link lets through at once after a pause would spoil it. Where no such message is small, it
// is taken as 0, and a window smaller than the bandwidth-delay product makes the estimate low.
//
// While several servers are busy each one's share of the worker's link is measured, which is what a
// window per server needs.
// Thread safety: none, like the policy that owns it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "prophet/item.h"
#include "prophet/policy/delay.h"

namespace prophet {

class BandwidthEstimate {
 public:
  static constexpr uint64_t kSampleBytes = 2 << 20;
  static constexpr TimeNs kSampleNs = 1'000'000;  // of a sample of so many bytes, at least
  static constexpr TimeNs kLongSampleNs = 50'000'000;
  static constexpr size_t kSamples = 15;
  static constexpr int kDelays = 32;

  // `bytes`, sent at `sent`, were acknowledged `now`; `more_in_flight`: others are still under way
  // to this server.
  void OnAcked(uint64_t bytes, TimeNs sent, bool more_in_flight, TimeNs now);

  // nullopt before the first sample.
  std::optional<double> bytes_per_ns() const { return estimate_; }

 private:
  void MeasureDelay(uint64_t bytes, TimeNs duration_ns);
  void AddSample(double bytes_per_ns);

  std::optional<TimeNs> last_ack_;  // of the busy interval that goes on
  DelayEstimate path_delay_{kDelays};
  uint64_t sample_bytes_ = 0;
  TimeNs sample_ns_ = 0;
  std::array<double, kSamples> samples_{};
  size_t sample_count_ = 0;  // ever taken
  std::optional<double> estimate_;
};

}  // namespace prophet
