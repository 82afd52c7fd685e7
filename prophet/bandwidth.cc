#include "prophet/bandwidth.h"

#include <algorithm>

namespace prophet {

void BandwidthEstimate::OnAcked(uint64_t bytes, bool more_in_flight, TimeNs now) {
  if (last_ack_) {
    sample_bytes_ += bytes;
    sample_ns_ += now - *last_ack_;
    if (sample_bytes_ >= kSampleBytes && sample_ns_ >= kSampleNs) {
      AddSample(static_cast<double>(sample_bytes_) / static_cast<double>(sample_ns_));
      sample_bytes_ = 0;
      sample_ns_ = 0;
    }
  }
  last_ack_ = more_in_flight ? std::optional(now) : std::nullopt;
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
