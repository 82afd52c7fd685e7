// What is going to happen, besides in the fabrics: a heap of plain 16-byte events.
//
// Events leave in the order of time, then kind, then worker, then partition: an order that the job
// itself gives, not the history of the program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "prophet/item.h"

namespace prophet::engine {

// In the order in which those of one time are done.
enum class Kind : uint8_t {
  kArrived,    // a push is at its server
  kRequested,  // a request to pull is at its server
  kSummed,     // a push has been added up
  kAcked,      // an acknowledgement is at its worker
  kPulled,     // an answer is at its worker
  kReady,      // the next tensors are ready
  kEnded,      // backward has ended
  kAsk,        // the policy wanted to be asked again
};

struct Event {
  TimeNs time = 0;
  uint64_t what = 0;

  Event() = default;
  Event(TimeNs at, Kind kind, size_t worker, size_t partition = 0)
      : time(at),
        what(static_cast<uint64_t>(kind) << 56 | static_cast<uint64_t>(worker) << 40 | partition) {}

  Kind kind() const { return static_cast<Kind>(what >> 56); }
  size_t worker() const { return what >> 40 & 0xffff; }
  size_t partition() const { return what & 0xff'ffff'ffff; }
  bool operator>(const Event& other) const {
    return time != other.time ? time > other.time : what > other.what;
  }
};

class Events {
 public:
  bool empty() const { return heap_.empty(); }
  const Event& first() const { return heap_.front(); }

  void Add(const Event& event) {
    heap_.push_back(event);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }
  Event Take() {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const Event event = heap_.back();
    heap_.pop_back();
    return event;
  }

 private:
  std::vector<Event> heap_;
};

}  // namespace prophet::engine
