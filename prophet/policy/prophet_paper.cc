#include "prophet/policy/prophet_paper.h"

#include <algorithm>

namespace prophet {

ProphetPaperPolicy::ProphetPaperPolicy(const Settings& settings)
    : PredictingPolicy(kSettings, settings) {
  Configure(settings);
}

void ProphetPaperPolicy::Configure(const Settings& settings) {
  GiveBandwidth(settings.at("bandwidth_bps"));
}

Decision ProphetPaperPolicy::Next(TimeNs now) {
  ask_again_ns_.reset();
  Decision decision = PredictingPolicy::Next(now);
  if (decision.kind == Decision::Kind::kIdle && ask_again_ns_) {
    decision = {.kind = Decision::Kind::kWaitUntil,
                .ask_again_ns = std::min(*ask_again_ns_, now + kLongestWaitNs)};
  }
  return decision;
}

bool ProphetPaperPolicy::MaySend(const Item& head, const ServerLoad& load, TimeNs now) {
  if (IsUnranked(head) || load.messages == 0) return true;
  const auto bytes_per_ns = BytesPerNs(head.server);
  if (!bytes_per_ns) return true;
  const Block& block = blocks_[head.server];
  if (const auto next = NextAbove(head.priority)) {
    const double needed_ns = static_cast<double>(head.bytes) / *bytes_per_ns;
    const TimeNs left_ns = *next - std::max(block.ends_ns, now);
    return !block.complete && needed_ns <= static_cast<double>(left_ns);
  }
  if (block.ends_ns <= now) return true;
  ask_again_ns_ = std::min(block.ends_ns, ask_again_ns_.value_or(block.ends_ns));
  return false;
}

void ProphetPaperPolicy::Sent(const Item& item, TimeNs now) {
  Block& block = blocks_[item.server];
  if (queues().load(item.server).messages == 1) block = {};  // nothing else in flight: a new one
  const auto bytes_per_ns = BytesPerNs(item.server);
  if (!bytes_per_ns) return;
  const double sending_ns =
      std::min(static_cast<double>(item.bytes) / *bytes_per_ns, kLongestSendNs);
  block.ends_ns = std::max(block.ends_ns, now) + static_cast<TimeNs>(sending_ns);
}

void ProphetPaperPolicy::Acked(const Item& item, TimeNs /*now*/) {
  blocks_[item.server].complete = true;
}

}  // namespace prophet
