// When a simulated driver asks a policy again that had nothing to send.
#pragma once

#include <algorithm>
#include <optional>

#include "prophet/policy.h"

namespace prophet {

class NextAsk {
 public:
  // After a decision that sends nothing: when an event has to be added; nullopt: none has to, or it
  // has been.
  std::optional<TimeNs> After(const Decision& decision, TimeNs now) {
    if (decision.kind == Decision::Kind::kIdle) {
      at_.reset();
      return std::nullopt;
    }
    // At least the next nanosecond: a policy that asks for now would be asked for ever.
    const TimeNs again = std::max(decision.ask_again_ns, now + 1);
    if (at_ == again) return std::nullopt;
    at_ = again;
    return again;
  }

  // Whether the event at `now` still counts: the policy may have decided otherwise since.
  bool IsDue(TimeNs now) const { return at_ == now; }

 private:
  std::optional<TimeNs> at_;
};

}  // namespace prophet
