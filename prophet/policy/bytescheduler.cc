#include "prophet/policy/bytescheduler.h"

namespace prophet {

ByteSchedulerPolicy::ByteSchedulerPolicy(const Settings& settings)
    : QueuedPolicy(kSettings, settings) {
  Configure(settings);
}

void ByteSchedulerPolicy::Configure(const Settings& settings) {
  credit_bytes_ = static_cast<uint64_t>(settings.at("credit_bytes"));
}

bool ByteSchedulerPolicy::MaySend(const Item& /*head*/, const ServerLoad& load, TimeNs /*now*/) {
  // The credit left is credit_bytes_ - load.bytes.
  return load.bytes < credit_bytes_;
}

}  // namespace prophet
