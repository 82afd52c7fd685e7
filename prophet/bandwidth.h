// The payload bandwidth towards one server, from its acknowledgements.
//
// Counted is only time between two acknowledgements with messages in flight all along, and the
// bytes that the second one acknowledges. So idle time, and the delay before the first
// acknowledgement of a busy interval, are left out, and what is measured is the link, not the load.
// Spans are added up until they hold enough bytes and time to be a sample; the estimate is the
// median of the last few samples: one burst of late acknowledgements does not move it, and a
// changed link is followed within a few megabytes.
//
// What it cannot see: a window smaller than the link's bandwidth-delay product makes the link idle
// between acknowledgements, and the estimate low. While several servers are busy each one's share
// of the worker's link is measured, which is what a window per server needs.
// Thread safety: none, like the policy that owns it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "prophet/item.h"

namespace prophet {

class BandwidthEstimate {
 public:
  static constexpr uint64_t kSampleBytes = 1 << 20;
  static constexpr TimeNs kSampleNs = 1'000'000;
  static constexpr size_t kSamples = 7;

  // `bytes` were acknowledged; `more_in_flight`: others are still under way to this server.
  void OnAcked(uint64_t bytes, bool more_in_flight, TimeNs now);

  // nullopt before the first sample.
  std::optional<double> bytes_per_ns() const { return estimate_; }

 private:
  void AddSample(double bytes_per_ns);

  std::optional<TimeNs> last_ack_;  // of the busy interval that goes on
  uint64_t sample_bytes_ = 0;
  TimeNs sample_ns_ = 0;
  std::array<double, kSamples> samples_{};
  size_t sample_count_ = 0;  // ever taken
  std::optional<double> estimate_;
};

}  // namespace prophet
