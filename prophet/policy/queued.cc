#include "prophet/policy/queued.h"

namespace prophet {

void QueuedPolicy::OnReady(const Item& item, TimeNs /*now*/) { queues_.Add(item, RankOf(item)); }

void QueuedPolicy::OnAcked(const Item& item, TimeNs /*now*/) { Retire(item.key); }

void QueuedPolicy::OnIteration(TimeNs /*now*/) {}

void QueuedPolicy::Reconfigure(const Settings& overrides) {
  const Settings resolved = Resolve(name(), specs_, Merged(settings_, overrides));
  Configure(resolved);
  settings_ = resolved;
}

Decision QueuedPolicy::Next(TimeNs now) {
  const auto item = queues_.TakeFirst(
      [&](const Item& head, const ServerLoad& load) { return MaySend(head, load, now); });
  if (!item) return {};
  return {.kind = Decision::Kind::kSend, .item = *item};
}

int64_t QueuedPolicy::RankOf(const Item& item) { return RankByPriority(item); }

}  // namespace prophet
