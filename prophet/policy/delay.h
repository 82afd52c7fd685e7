// The shortest time, lately, from sending a message to its acknowledgement: what a window must
// cover, beyond one message, for the link not to idle.
//
// The shortest, because a longer one is time in queues, which a larger window would only lengthen.
// Over the last one to two periods, so that a changed path is noticed.
// Thread safety: none, like the policy that owns it.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>

#include "prophet/item.h"

namespace prophet {

class DelayEstimate {
 public:
  static constexpr int kPeriodMessages = 512;

  explicit DelayEstimate(int period_messages = kPeriodMessages)
      : period_messages_(period_messages) {}

  void OnAcked(TimeNs delay_ns) {
    current_ns_ = std::min(current_ns_, delay_ns);
    if (++messages_ < period_messages_) return;
    previous_ns_ = current_ns_;
    current_ns_ = kNever;
    messages_ = 0;
  }

  // nullopt before the first acknowledgement.
  std::optional<TimeNs> shortest_ns() const {
    const TimeNs shortest_ns = std::min(current_ns_, previous_ns_);
    return shortest_ns == kNever ? std::nullopt : std::optional(shortest_ns);
  }

 private:
  static constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();

  int period_messages_;
  TimeNs current_ns_ = kNever;
  TimeNs previous_ns_ = kNever;
  int messages_ = 0;  // in the current period
};

}  // namespace prophet
