// What the worker's link, which all servers share, still has to carry: messages sent and not
// acknowledged, less those that are overdue. What takes far longer than the link needs for it is
// held up elsewhere, by a slow server, and must not keep the others' messages back.
// Thread safety: none, like the policy that owns it.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>

#include "prophet/item.h"

namespace prophet {

class LinkLoad {
 public:
  // From `due_ns` on the message counts no more.
  void OnSent(uint64_t key, uint64_t bytes, TimeNs due_ns);
  // A key that is not there is ignored.
  void OnAcked(uint64_t key);
  // Drops what is overdue.
  void Expire(TimeNs now);

  uint64_t bytes() const { return bytes_; }
  // When less than `bytes` (at least 1) will be left even if nothing is acknowledged; 0 if that is
  // so already. Cost: linear in the messages.
  TimeNs BelowAt(uint64_t bytes) const;

 private:
  struct Message {
    uint64_t key;
    uint64_t bytes;
  };
  using Messages = std::multimap<TimeNs, Message>;  // by due time

  Messages messages_;
  std::unordered_map<uint64_t, Messages::iterator> by_key_;
  uint64_t bytes_ = 0;
};

}  // namespace prophet
