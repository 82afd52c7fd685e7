// What is going to happen: a heap with four children per node, of plain 16-byte events.
//
// Of what happens at one time no order is promised: the replay does not depend on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "prophet/fluid/links.h"
#include "prophet/item.h"

namespace prophet::graph {

enum class Kind : uint32_t {
  kReady,  // an operation has heard of all that it depends on
  kEnded,  // an operation's time is over
  kBytes,  // a flow's cost is over, its bytes begin
  kAcked,  // an operation that acknowledges has been heard of
  kAsk,    // a gate's policy wanted to be asked again
};

struct Event {
  TimeNs time = 0;
  Kind kind = Kind::kReady;
  int32_t index = 0;  // of an operation, or a gate
};

class Events {
 public:
  size_t size() const { return heap_.size(); }
  // kNever if there is none.
  TimeNs next_ns() const { return heap_.empty() ? fluid::kNever : heap_.front().time; }

  void Add(const Event& event) {
    heap_.push_back(event);
    size_t at = heap_.size() - 1;
    while (at > 0) {
      const size_t parent = (at - 1) / kChildren;
      if (heap_[parent].time <= event.time) break;
      heap_[at] = heap_[parent];
      at = parent;
    }
    heap_[at] = event;
  }

  // There is one.
  Event Take() {
    const Event first = heap_.front();
    const Event last = heap_.back();
    heap_.pop_back();
    const size_t count = heap_.size();
    size_t at = 0;
    for (;;) {
      const size_t begin = at * kChildren + 1;
      if (begin >= count) break;
      const size_t end = begin + kChildren < count ? begin + kChildren : count;
      size_t least = begin;
      for (size_t child = begin + 1; child < end; ++child) {
        if (heap_[child].time < heap_[least].time) least = child;
      }
      if (heap_[least].time >= last.time) break;
      heap_[at] = heap_[least];
      at = least;
    }
    if (count > 0) heap_[at] = last;
    return first;
  }

 private:
  static constexpr size_t kChildren = 4;
  std::vector<Event> heap_;
};

}  // namespace prophet::graph
