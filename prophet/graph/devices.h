// Who waits for which device, and who has it.
//
// Devices with pending work are collected and started together (Begin), after every event of the
// current time has been handled. A device is never idle while anything waits: an operation that
// begins later than it came took the place of one that ended at that time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "prophet/graph/graph.h"
#include "prophet/item.h"

namespace prophet::graph {

class Devices {
 public:
  explicit Devices(const Graph& graph) : priority_(graph.priority), devices_(graph.devices.size()) {
    for (size_t number = 0; number < devices_.size(); ++number) {
      const Device& from = graph.devices[number];
      if (from.kind == Device::Kind::kSerial) devices_[number].free = from.units;
      devices_[number].by_priority = from.by_priority && !priority_.empty();
    }
  }

  // Of those that came at one time the one with the smaller order is first.
  void Queue(int32_t device, int32_t operation, uint64_t order, TimeNs now) {
    State& state = At(device);
    const int64_t urgency =
        state.by_priority ? -int64_t{priority_[static_cast<size_t>(operation)]} : 0;
    state.queue.push_back({urgency, now, order, operation});
    std::push_heap(state.queue.begin(), state.queue.end());
    Touch(device);
  }

  void OnEnd(int32_t device, int32_t operation) {
    State& state = At(device);
    ++state.free;
    state.last = operation;
    if (!state.queue.empty()) Touch(device);
  }

  // `begin(operation, held_by)` for all that can begin; held_by: the operation that ended in its
  // favour, -1 if it came now. False: no device was noted.
  template <typename Start>
  bool Begin(TimeNs now, const Start& begin) {
    if (touched_.empty()) return false;
    for (const int32_t number : touched_) {
      State& device = At(number);
      device.touched = false;
      while (device.free > 0 && !device.queue.empty()) {
        const Waiting next = device.queue.front();
        std::pop_heap(device.queue.begin(), device.queue.end());
        device.queue.pop_back();
        --device.free;
        begin(next.operation, now > next.since ? device.last : -1);
      }
    }
    touched_.clear();
    return true;
  }

 private:
  struct Waiting {
    int64_t urgency;  // smaller first; then since when, then the order
    TimeNs since;
    uint64_t order;
    int32_t operation;
    // For a heap whose top is the smallest.
    bool operator<(const Waiting& other) const {
      if (urgency != other.urgency) return urgency > other.urgency;
      return since != other.since ? since > other.since : order > other.order;
    }
  };
  struct State {
    std::vector<Waiting> queue;  // a heap
    int64_t free = 1;            // units
    int32_t last = -1;           // that ended
    bool by_priority = false;
    bool touched = false;
  };

  State& At(int32_t device) { return devices_[static_cast<size_t>(device)]; }
  void Touch(int32_t device) {
    if (!std::exchange(At(device).touched, true)) touched_.push_back(device);
  }

  std::span<const int32_t> priority_;
  std::vector<State> devices_;
  std::vector<int32_t> touched_;
};

}  // namespace prophet::graph
