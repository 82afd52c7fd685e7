#include "prophet/bound.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "prophet/segment_tree.h"

namespace prophet {
namespace {

// Products of a time or a size with a rate need more than 64 bits.
__extension__ typedef __int128 Wide;

constexpr Wide kLimit = Wide{1} << 62;
constexpr int64_t kMaxCount = 1 << 20;
constexpr Wide kBitNsPerByte = 8'000'000'000;  // bytes * this / (bits per second) = ns

void Require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument("iteration bound: " + what);
}

Wide Sum(std::span<const int64_t> values) {
  return std::accumulate(values.begin(), values.end(), Wide{0});
}

void Validate(const BoundInput& input) {
  Require(input.size_bytes.size() == input.ready_ns.size() &&
              input.size_bytes.size() == input.forward_ns.size(),
          "size_bytes, ready_ns and forward_ns differ in length");
  const auto negative = [](int64_t value) { return value < 0; };
  Require(std::none_of(input.size_bytes.begin(), input.size_bytes.end(), negative),
          "size_bytes has a negative entry");
  Require(std::none_of(input.ready_ns.begin(), input.ready_ns.end(), negative),
          "ready_ns has a negative entry");
  Require(std::none_of(input.forward_ns.begin(), input.forward_ns.end(), negative),
          "forward_ns has a negative entry");
  Require(input.backward_ns >= 0, "backward_ns is negative");
  Require(input.bandwidth_bps.value_or(1) > 0, "bandwidth_bps must be positive");
  Require(input.server_bandwidth_bps.value_or(1) > 0, "server_bandwidth_bps must be positive");
  Require(input.workers > 0 && input.workers <= kMaxCount && input.servers > 0 &&
              input.servers <= kMaxCount,
          "workers and servers must be between 1 and " + std::to_string(kMaxCount));
}

// The time at which a link that never idles without need has sent a set of tensors, built up by
// adding them. Positions are releases in ascending order. Times are multiplied by the rate, so that
// sums of bytes add to them exactly.
struct Busy {
  struct Value {
    Wide work;  // of the tensors in this range of releases
    Wide end;   // latest, over releases in the range with a tensor, of release + work from there on
  };
  static constexpr Wide kNone = -(Wide{1} << 126);

  static constexpr Value Identity() { return {0, kNone}; }
  static Value Combine(const Value& left, const Value& right) {
    const Wide end = left.end == kNone ? right.end : std::max(left.end + right.work, right.end);
    return {left.work + right.work, end};
  }
};

// The first term, not rounded: the result times the rate.
Wide LinkBoundTimesRate(const BoundInput& input, Wide rate) {
  const size_t count = input.size_bytes.size();
  std::vector<TimeNs> releases(input.ready_ns.begin(), input.ready_ns.end());
  std::sort(releases.begin(), releases.end());
  SegmentTree<Busy> busy(count);
  Wide tail_ns = Sum(input.forward_ns);
  Wide bound = 0;
  for (size_t k = 0; k < count; ++k) {
    const TimeNs release = input.ready_ns[k];
    const auto position = static_cast<size_t>(
        std::lower_bound(releases.begin(), releases.end(), release) - releases.begin());
    const Wide work = busy.Get(position).work + kBitNsPerByte * input.size_bytes[k];
    busy.Set(position, {work, Wide{release} * rate + work});
    bound = std::max(bound, busy.All().end + tail_ns * rate);
    tail_ns -= input.forward_ns[k];
  }
  return bound;
}

}  // namespace

TimeNs IterationBoundNs(const BoundInput& input) {
  Validate(input);
  const Wide bytes = Sum(input.size_bytes);
  const Wide forward_ns = Sum(input.forward_ns);
  const Wide last_ready_ns =
      input.ready_ns.empty() ? 0 : *std::max_element(input.ready_ns.begin(), input.ready_ns.end());
  const Wide compute_ns = std::max<Wide>(input.backward_ns, last_ready_ns) + forward_ns;
  Require(compute_ns < kLimit && bytes < kLimit, "times or sizes add up to too much");

  Wide bound = Wide{input.backward_ns} + forward_ns;
  if (input.bandwidth_bps) {
    const Wide rate = *input.bandwidth_bps;
    bound = std::max(bound, LinkBoundTimesRate(input, rate) / rate);
    bound = std::max(bound, bytes * kBitNsPerByte / rate);
  } else {
    // Transfers take no time, but still cannot start before their tensor is ready.
    Wide tail_ns = forward_ns;
    for (size_t k = 0; k < input.ready_ns.size(); ++k) {
      bound = std::max(bound, input.ready_ns[k] + tail_ns);
      tail_ns -= input.forward_ns[k];
    }
  }
  if (input.server_bandwidth_bps) {
    const Wide rate = Wide{input.servers} * *input.server_bandwidth_bps;
    bound = std::max(bound, bytes * input.workers * kBitNsPerByte / rate);
  }
  Require(bound < kLimit, "the result does not fit: sizes too large for the bandwidth");
  return static_cast<TimeNs>(bound);
}

}  // namespace prophet
