#include "prophet/policy/bandwidth.h"

#include <algorithm>

namespace prophet {

void BandwidthEstimate::OnAcked(uint64_t bytes, TimeNs sent, bool more_in_flight, TimeNs now) {
  if (!last_ack_) {
    MeasureDelay(bytes, now - sent);
  } else {
    const TimeNs earliest = sent + path_delay_.shortest_ns().value_or(0);
    sample_bytes_ += bytes;
    sample_ns_ += std::max<TimeNs>(0, now - std::max(*last_ack_, earliest));
    const bool enough = sample_bytes_ >= kSampleBytes && sample_ns_ >= kSampleNs;
    if (enough || (sample_ns_ >= kLongSampleNs && sample_bytes_ > 0)) {
      AddSample(static_cast<double>(sample_bytes_) / static_cast<double>(sample_ns_));
      sample_bytes_ = 0;
      sample_ns_ = 0;
    }
  }
  last_ack_ = more_in_flight ? std::optional(now) : std::nullopt;
}

void BandwidthEstimate::MeasureDelay(uint64_t bytes, TimeNs duration_ns) {
  if (!estimate_) return;
  // Not a time that fits an integer where the estimate is next to nothing.
  const double bytes_ns = static_cast<double>(bytes) / *estimate_;
  if (bytes_ns < static_cast<double>(duration_ns) / 2) {
    path_delay_.OnAcked(duration_ns - static_cast<TimeNs>(bytes_ns));
  }
}

void BandwidthEstimate::AddSample(double bytes_per_ns) {
  samples_[sample_count_++ % kSamples] = bytes_per_ns;
  auto sorted = samples_;
  const size_t count = std::min(sample_count_, kSamples);
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(count / 2);
  std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(count));
  estimate_ = *middle;
}

}  // namespace prophet
