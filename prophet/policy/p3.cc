#include "prophet/policy/p3.h"

namespace prophet {

P3Policy::P3Policy(const Settings& settings) : QueuedPolicy(kSettings, settings) {
  Configure(settings);
}

void P3Policy::Configure(const Settings& settings) {
  outstanding_messages_ = static_cast<size_t>(settings.at("outstanding_messages"));
}

bool P3Policy::MaySend(const Item& /*head*/, const ServerLoad& load, TimeNs /*now*/) {
  return load.messages < outstanding_messages_;
}

}  // namespace prophet
