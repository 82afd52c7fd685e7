// What runs beside what: operations of a serial device take longer while a flow is under way on a
// connection of its group, and bytes of these connections while the device is busy.
//
// Work is counted in parts of kWhole per nanosecond, so whatever is slowed for all of its time
// takes its duration times (1 + slowdown), rounded up. Devices are noted when they begin or end
// something and looked at when time goes on (Settle): what follows each other without a gap goes on
// as it was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "prophet/fluid/links.h"
#include "prophet/graph/graph.h"
#include "prophet/item.h"

namespace prophet::graph {

class Overlap {
 public:
  explicit Overlap(const Graph& graph) {
    bool any = false;
    for (const Device& device : graph.devices) any |= device.overlap_group >= 0;
    if (!any) return;
    devices_.resize(graph.devices.size());
    for (size_t number = 0; number < devices_.size(); ++number) {
      const Device& from = graph.devices[number];
      if (from.overlap_group < 0) continue;
      const auto group = static_cast<size_t>(from.overlap_group);
      if (group >= groups_.size()) groups_.resize(group + 1);
      devices_[number] = {.group = from.overlap_group, .slowdown = from.overlap_slowdown};
      Group& own = groups_[group];
      const bool is_serial = from.kind == Device::Kind::kSerial;
      (is_serial ? own.serial : own.connections).push_back(static_cast<int32_t>(number));
    }
  }

  bool Has(int32_t device) const { return !devices_.empty() && At(device).group >= 0; }

  // A flow begins on a connection that has a group, or ends there.
  void OnFlow(int32_t device, bool begins) {
    Group& group = GroupOf(device);
    group.flows += begins ? 1 : -1;
    Touch(At(device).group);
  }
  // An operation that takes time begins on a serial device that has one.
  void OnBegin(int32_t device, int32_t operation, TimeNs duration, TimeNs now) {
    State& state = At(device);
    state.operation = operation;
    state.left = static_cast<Work>(duration) * static_cast<Work>(fluid::kWhole + state.slowdown);
    state.settled = now;
    state.pace = 0;
    ++GroupOf(device).busy;
    Touch(state.group);
  }
  // Whether that operation ends now: its end may have been put off.
  bool IsOver(int32_t device, int32_t operation, TimeNs now) const {
    return At(device).operation == operation && At(device).end == now;
  }
  void OnEnd(int32_t device) {
    At(device).operation = -1;
    --GroupOf(device).busy;
    Touch(At(device).group);
  }

  // To be called before time goes on. `ends(time, operation)` for what will end otherwise than was
  // known.
  template <typename Ends>
  void Settle(TimeNs now, fluid::Links& links, const Ends& ends) {
    for (const int32_t number : touched_) {
      Group& group = groups_[static_cast<size_t>(number)];
      group.touched = false;
      for (const int32_t device : group.serial) {
        State& state = At(device);
        if (state.operation >= 0 && SetPace(state, group.flows > 0, now)) {
          ends(state.end, state.operation);
        }
      }
      if (std::exchange(group.slows, group.busy > 0) == group.slows) continue;
      for (const int32_t device : group.connections) {
        const int32_t slowdown = group.slows ? At(device).slowdown : 0;
        links.SetSlowdown(static_cast<size_t>(device), slowdown, now);
      }
    }
    touched_.clear();
  }

 private:
  __extension__ typedef unsigned __int128 Work;

  struct State {
    int32_t group = -1;
    int32_t slowdown = 0;
    // Of a serial device.
    int32_t operation = -1;  // -1: none
    int64_t pace = 0;        // parts of kWhole per ns; 0: not known yet
    Work left = 0;           // at `settled`
    TimeNs settled = 0;
    TimeNs end = 0;
  };
  struct Group {
    std::vector<int32_t> serial;
    std::vector<int32_t> connections;
    int64_t flows = 0;   // under way
    int64_t busy = 0;    // serial devices
    bool slows = false;  // the connections
    bool touched = false;
  };

  // False: it goes on as it was.
  static bool SetPace(State& state, bool slowed, TimeNs now) {
    const int64_t pace = fluid::kWhole + (slowed ? 0 : state.slowdown);
    if (state.pace == pace) return false;
    const Work done = static_cast<Work>(state.pace) * static_cast<Work>(now - state.settled);
    state.left -= done < state.left ? done : state.left;
    state.settled = now;
    state.pace = pace;
    const auto per_ns = static_cast<Work>(pace);
    state.end = now + static_cast<TimeNs>((state.left + per_ns - 1) / per_ns);
    return true;
  }

  State& At(int32_t device) { return devices_[static_cast<size_t>(device)]; }
  const State& At(int32_t device) const { return devices_[static_cast<size_t>(device)]; }
  Group& GroupOf(int32_t device) { return groups_[static_cast<size_t>(At(device).group)]; }
  void Touch(int32_t group) {
    if (!std::exchange(groups_[static_cast<size_t>(group)].touched, true)) {
      touched_.push_back(group);
    }
  }

  std::vector<State> devices_;  // empty where no device has a group
  std::vector<Group> groups_;
  std::vector<int32_t> touched_;  // groups
};

}  // namespace prophet::graph
