// One push_pull of a name at a time. BytePS has one buffer per name and its server counts pushes,
// not workers: a second one before the first is finished gave wrong sums on all ranks, or a hang.
//
// Begin() runs in the thread that calls push_pull, End() in BytePS' thread that finishes it.
#pragma once

#include <atomic>
#include <stdexcept>
#include <string>

namespace byteprophet {

class OneAtATime {
 public:
  // std::logic_error, in Python a RuntimeError, if one is in flight.
  void Begin(const std::string& name) {
    if (in_flight_.exchange(true))
      throw std::logic_error("push_pull of '" + name +
                             "' while the one before is in flight: synchronize that first");
  }
  void End() { in_flight_ = false; }

 private:
  std::atomic<bool> in_flight_{false};
};

}  // namespace byteprophet
