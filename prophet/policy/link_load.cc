#include "prophet/policy/link_load.h"

namespace prophet {

void LinkLoad::OnSent(uint64_t key, uint64_t bytes, TimeNs due_ns) {
  OnAcked(key);  // a key given twice counts once
  by_key_.emplace(key, messages_.emplace(due_ns, Message{key, bytes}));
  bytes_ += bytes;
}

void LinkLoad::OnAcked(uint64_t key) {
  const auto found = by_key_.extract(key);
  if (!found) return;
  bytes_ -= found.mapped()->second.bytes;
  messages_.erase(found.mapped());
}

void LinkLoad::Expire(TimeNs now) {
  while (!messages_.empty() && messages_.begin()->first <= now) {
    OnAcked(messages_.begin()->second.key);
  }
}

TimeNs LinkLoad::BelowAt(uint64_t bytes) const {
  uint64_t left = bytes_;
  TimeNs at = 0;
  for (auto next = messages_.begin(); left >= bytes && next != messages_.end(); ++next) {
    left -= next->second.bytes;
    at = next->first;
  }
  return at;
}

}  // namespace prophet
