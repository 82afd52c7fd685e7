// How much of what was handed to one TCP connection is still on its way, and how much may be.
//
// Bytes that stand in a queue behind the connection cannot be overtaken any more, wherever they
// stand: in ZeroMQ's pipe, in the kernel's send buffer or at a slow link. What the other end has
// acknowledged is past all of them, and the kernel counts it. So
//
//   outstanding = handed over - acknowledged since then,  at least what the kernel still holds
//   window      = kFloorBytes + delivery rate * kSlackNs
//
// The window is what keeps the link busy until somebody looks again, and no more. The rate is a
// reason to look later, not what the window lives from: the floor alone must fill the link, or a
// rate that was measured under a narrow window would keep the window narrow. So the floor covers
// what is past the link and not known to be: acknowledgements wait at the other end behind what it
// sends itself, and Linux lets each of its connections have up to 2 segments of 64 KiB in the
// device's queue, or what its pacing allows in 1 ms (tcp_small_queue_check). With 64 KiB a link of
// 1 Gbit/s that was full in the other direction stood still half of the time.
//
// The kernel's own delivery rate will not do: where a connection has rests, it is that of a burst
// into an empty queue, ten times the link's. Nor will its shortest round trip, which has nobody
// else's queues in it.
//
// Message headers are acknowledged without having been counted, some 0.1% of the bytes; so a
// connection that has been empty for kRestNs starts the count anew.
// Thread safety: none.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace byteprophet {

// What the kernel says of a connection.
struct TcpReading {
  uint64_t acked_bytes = 0;   // since the connection was made
  uint64_t queued_bytes = 0;  // written to it, and not acknowledged
};

class Flow {
 public:
  static constexpr int64_t kSlackNs = 1'000'000;
  static constexpr uint64_t kFloorBytes = 384 << 10;
  static constexpr int64_t kRestNs = 10'000'000;    // ZeroMQ's threads have run meanwhile
  static constexpr int64_t kSampleNs = 10'000'000;  // the rate is measured over that long, or more
  static constexpr size_t kRates = 8;  // the window follows the largest of the last ones

  void OnHanded(uint64_t bytes, int64_t now_ns) {
    handed_bytes_ += bytes;
    last_handed_ns_ = now_ns;
  }

  void OnReading(const TcpReading& reading, int64_t now_ns) {
    const bool another = reading.acked_bytes < acked_bytes_;
    const bool rests = reading.queued_bytes == 0 && now_ns - last_handed_ns_ > kRestNs;
    if (another || rests || handed_bytes_ < reading.acked_bytes - base_bytes_) {
      handed_bytes_ = 0;
      base_bytes_ = reading.acked_bytes;
    }
    acked_bytes_ = reading.acked_bytes;
    queued_bytes_ = reading.queued_bytes;
    if (another || outstanding_bytes() == 0) {
      sampled_ns_.reset();
    } else if (!sampled_ns_ || now_ns - *sampled_ns_ >= kSampleNs) {
      if (sampled_ns_) {
        rates_[next_rate_++ % kRates] = static_cast<double>(acked_bytes_ - sampled_bytes_) /
                                        static_cast<double>(now_ns - *sampled_ns_);
      }
      sampled_ns_ = now_ns;
      sampled_bytes_ = acked_bytes_;
    }
  }

  uint64_t outstanding_bytes() const {
    return std::max(handed_bytes_ - (acked_bytes_ - base_bytes_), queued_bytes_);
  }

  uint64_t window_bytes() const {
    return kFloorBytes + static_cast<uint64_t>(rate() * static_cast<double>(kSlackNs));
  }

  bool may_send() const { return outstanding_bytes() < window_bytes(); }

  // When half the window will have been delivered.
  int64_t ask_again_ns() const {
    const double excess =
        static_cast<double>(outstanding_bytes()) - static_cast<double>(window_bytes()) / 2;
    const double wait_ns = rate() > 0 ? excess / rate() : 0.0;
    return static_cast<int64_t>(std::clamp(wait_ns, 200e3, static_cast<double>(kSlackNs)));
  }

 private:
  double rate() const { return *std::max_element(rates_.begin(), rates_.end()); }

  uint64_t handed_bytes_ = 0;  // since base_bytes_ had been acknowledged
  int64_t last_handed_ns_ = 0;
  uint64_t base_bytes_ = 0;
  uint64_t acked_bytes_ = 0;
  uint64_t queued_bytes_ = 0;
  std::optional<int64_t> sampled_ns_;  // since then something was outstanding
  uint64_t sampled_bytes_ = 0;         // acknowledged then
  std::array<double, kRates> rates_{};
  size_t next_rate_ = 0;
};

}  // namespace byteprophet
