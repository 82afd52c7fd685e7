// The loop: what happens next, and what follows from it.
//
// At one time, in this order and again from the start as long as there is anything: ends and
// readiness; devices begin what they can; one gate's policy is asked. Then time goes on.
//
// What the loop touches of an operation is one cache line; the graph's arrays are read once before
// and, for flows, gates, priorities and memory only, during the replay.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "prophet/fluid/links.h"
#include "prophet/graph/devices.h"
#include "prophet/graph/events.h"
#include "prophet/graph/gates.h"
#include "prophet/graph/graph.h"
#include "prophet/graph/memory.h"
#include "prophet/graph/operation.h"
#include "prophet/graph/overlap.h"

namespace prophet::graph {
namespace {

using fluid::kNever;

// How often in a row, while nothing else is to come, policies may say that they will send later.
constexpr int64_t kPatience = 100'000;

// The flow that a connection has.
struct Flow {
  int32_t operation = -1;
  bool in_cost = false;    // the first link bears its cost now
  bool in_burst = false;   // links without a burst bear what others have carried at once
  int64_t rest_bytes = 0;  // of the operation, after its burst
};

class Replayer {
 public:
  Replayer(const Graph& graph, const PolicyMaker& make)
      : graph_(graph),
        gates_(graph, make),
        devices_(graph),
        links_(graph.link_bps, graph.link_burst_bytes),
        overlap_(graph),
        memory_(graph),
        flows_(graph.devices.size()),
        operations_(graph.duration_ns.size()),
        left_(operations_.size()) {
    for (const Device& device : graph.devices) {
      links_.AddConnection(device.route, device.weights);
    }
    for (size_t i = 0; i < operations_.size(); ++i) Read(i);
    for (const int32_t successor : graph_.successor) ++At(successor).missing;
  }

  Result Run() {
    for (size_t i = 0; i < operations_.size(); ++i) {
      if (operations_[i].missing == 0) Heard(static_cast<int32_t>(i));
    }
    while (left_ > 0) {
      if (TakeOne() || BeginOnDevices() || BeginFlows() || AskOneGate()) continue;
      if (!Advance()) RefuseWhatIsLeft();
    }
    memory_.Settle();
    links_.Settle(now_);
    return Finish();
  }

 private:
  void Read(size_t i) {
    const auto number = static_cast<int32_t>(i);
    Operation& operation = operations_[i];
    operation.duration = graph_.duration_ns[i];
    operation.device = graph_.device[i];
    if (!graph_.latency_ns.empty()) operation.latency = graph_.latency_ns[i];
    if (!graph_.release_ns.empty()) operation.ready = graph_.release_ns[i];
    operation.first_successor = static_cast<uint32_t>(graph_.first_successor[i]);
    operation.successors =
        static_cast<uint32_t>(graph_.first_successor[i + 1]) - operation.first_successor;
    if (gates_.IsGated(number)) operation.flags |= Operation::kGated;
    if (gates_.Acknowledges(number)) operation.flags |= Operation::kAcknowledges;
    if (gates_.Marks(number)) operation.flags |= Operation::kMarks;
    if (memory_.IsUsedBy(i)) operation.flags |= Operation::kMemory;
  }

  Operation& At(int32_t number) { return operations_[static_cast<size_t>(number)]; }

  // Now or later.
  void Add(TimeNs time, Kind kind, int32_t index) {
    if (time > now_) return events_.Add({time, kind, index});
    at_once_.push_back({time, kind, index});
  }

  // Whatever happens now without a choice, one thing.
  bool TakeOne() {
    if (!at_once_.empty()) {
      const Event event = at_once_.back();
      at_once_.pop_back();
      Handle(event);
      return true;
    }
    if (events_.next_ns() == now_) {
      Handle(events_.Take());
      return true;
    }
    if (links_.next_ns() == now_) {
      const size_t connection = links_.Take();
      Flow& flow = flows_[connection];
      if (std::exchange(flow.in_cost, false)) {
        BeginBytes(flow.operation);
      } else if (std::exchange(flow.in_burst, false) && flow.rest_bytes > 0) {
        links_.StartBytes(connection, flow.rest_bytes, now_);
      } else {
        End(flow.operation);
      }
      return true;
    }
    return false;
  }

  void Handle(const Event& event) {
    switch (event.kind) {
      case Kind::kReady:
        return Ready(event.index);
      case Kind::kEnded:
        if (!IsPutOff(event.index)) End(event.index);
        return;
      case Kind::kBytes:
        return BeginBytes(event.index);
      case Kind::kAcked:
        return gates_.OnAcked(event.index);
      case Kind::kAsk:
        --asks_;
        return gates_.OnAsk(static_cast<size_t>(event.index), now_);
    }
  }

  // Whether an operation whose end was to come now is over already, or goes on because of others.
  bool IsPutOff(int32_t number) const {
    const Operation& operation = operations_[static_cast<size_t>(number)];
    if (operation.duration == 0 || !IsSlowedByFlows(operation.device)) return false;
    return !overlap_.IsOver(operation.device, number, now_);
  }

  bool IsSlowedByFlows(int32_t device) const {
    return device >= 0 && overlap_.Has(device) &&
           graph_.devices[static_cast<size_t>(device)].kind == Device::Kind::kSerial;
  }

  // All that it depends on has ended, and will have been heard of at its `ready`.
  void Heard(int32_t number) {
    const TimeNs ready = At(number).ready;
    if (ready <= now_) return Ready(number);
    events_.Add({ready, Kind::kReady, number});
  }

  void Ready(int32_t number) {
    if ((At(number).flags & Operation::kGated) != 0) return gates_.OnReady(number);
    Queue(number, static_cast<uint64_t>(number));
  }

  void Queue(int32_t number, uint64_t order) {
    const Operation& operation = At(number);
    if (operation.device >= 0) return devices_.Queue(operation.device, number, order, now_);
    Start(number);
    Add(now_ + operation.duration, Kind::kEnded, number);
  }

  bool BeginOnDevices() {
    return devices_.Begin(now_, [&](int32_t number, int32_t held_by) {
      if (held_by >= 0) At(number).held_by = held_by;
      Start(number);
      BeginService(number);
    });
  }

  void BeginService(int32_t number) {
    const Operation& operation = At(number);
    const auto device = static_cast<size_t>(operation.device);
    if (graph_.devices[device].kind == Device::Kind::kSerial) {
      if (operation.duration > 0 && overlap_.Has(operation.device)) {
        return overlap_.OnBegin(operation.device, number, operation.duration, now_);
      }
      return Add(now_ + operation.duration, Kind::kEnded, number);
    }
    if (overlap_.Has(operation.device)) overlap_.OnFlow(operation.device, true);
    Flow& flow = flows_[device];
    flow.operation = number;
    if (operation.duration == 0) return BeginBytes(number);
    flow.in_cost = graph_.devices[device].cost_on_first_link;
    if (flow.in_cost) return links_.StartCost(device, operation.duration, now_);
    Add(now_ + operation.duration, Kind::kBytes, number);
  }

  void BeginBytes(int32_t number) {
    const auto connection = static_cast<size_t>(At(number).device);
    const int64_t bytes =
        graph_.size_bytes.empty() ? 0 : graph_.size_bytes[static_cast<size_t>(number)];
    if (bytes == 0 || !links_.Limits(connection)) return Add(now_, Kind::kEnded, number);
    if (links_.bursts()) return beginning_.push_back({connection, bytes});
    links_.StartBytes(connection, bytes, now_);
  }

  // Those that share what links have saved.
  bool BeginFlows() {
    if (beginning_.empty()) return false;
    std::ranges::sort(beginning_, {}, &fluid::Links::Beginning::connection);
    links_.TakeBursts(beginning_, now_);
    for (const auto& [connection, bytes, burst] : beginning_) {
      Flow& flow = flows_[connection];
      flow.rest_bytes = bytes - burst;
      flow.in_burst = burst > 0 && links_.LimitsBurst(connection);
      if (flow.in_burst) {
        links_.StartBurst(connection, burst, now_);
      } else if (flow.rest_bytes > 0) {
        links_.StartBytes(connection, flow.rest_bytes, now_);
      } else {
        Add(now_, Kind::kEnded, flow.operation);
      }
    }
    beginning_.clear();
    return true;
  }

  void Start(int32_t number) {
    Operation& operation = At(number);
    operation.start = now_;
    if (operation.flags == 0) return;
    if ((operation.flags & Operation::kMarks) != 0) gates_.OnStart(number);
    if ((operation.flags & Operation::kMemory) != 0) memory_.OnStart(static_cast<size_t>(number));
  }

  void End(int32_t number) {
    Operation& operation = At(number);
    operation.end = now_;
    --left_;
    if (operation.device >= 0) {
      devices_.OnEnd(operation.device, number);
      if (overlap_.Has(operation.device)) EndOverlap(operation);
    }
    const TimeNs heard = now_ + operation.latency;
    if (operation.flags != 0) {
      if ((operation.flags & Operation::kMemory) != 0) memory_.OnEnd(static_cast<size_t>(number));
      if ((operation.flags & Operation::kAcknowledges) != 0) Add(heard, Kind::kAcked, number);
    }
    for (uint32_t i = 0; i < operation.successors; ++i) {
      const int32_t next = graph_.successor[operation.first_successor + i];
      Operation& successor = At(next);
      successor.ready = std::max(successor.ready, heard);
      if (--successor.missing == 0) Heard(next);
    }
  }

  void EndOverlap(const Operation& operation) {
    if (!IsSlowedByFlows(operation.device)) return overlap_.OnFlow(operation.device, false);
    if (operation.duration > 0) overlap_.OnEnd(operation.device);
  }

  bool AskOneGate() {
    return gates_.AskOne(
        now_,
        [&](int32_t number, int32_t because) {
          if (now_ > At(number).ready) At(number).held_by = because;
          Queue(number, operations_.size() + sent_++);
        },
        [&](size_t gate, TimeNs at) {
          ++asks_;
          events_.Add({at, Kind::kAsk, static_cast<int32_t>(gate)});
        });
  }

  // To the next time at which anything happens. False: nothing will, but for policies that ask.
  bool Advance() {
    memory_.Settle();
    overlap_.Settle(now_, links_, [&](TimeNs time, int32_t number) {
      events_.Add({time, Kind::kEnded, number});
    });
    links_.Settle(now_);
    const TimeNs flow_ns = links_.next_ns();
    const bool only_asks = flow_ns == kNever && events_.size() == asks_;
    idle_asks_ = only_asks ? idle_asks_ + 1 : 0;
    now_ = std::min(events_.next_ns(), flow_ns);
    return now_ != kNever && idle_asks_ < kPatience;
  }

  [[noreturn]] void RefuseWhatIsLeft() const {
    if (const int64_t on_cycle = FindCycle(graph_); on_cycle >= 0) {
      throw Refused("operation " + std::to_string(on_cycle) + " depends on itself", on_cycle);
    }
    // Whatever waits, waits in the end for what a policy keeps.
    const int32_t kept = gates_.kept();
    throw Refused("the policy of its gate never sends operation " + std::to_string(kept) +
                      ": is everything before it acknowledged?",
                  kept);
  }

  Result Finish() {
    Result result = ResultOf(graph_, operations_);
    for (size_t link = 0; link < graph_.link_bps.size(); ++link) {
      result.link_busy_ns.push_back(links_.busy_ns(link));
    }
    result.peak_bytes = memory_.peak_bytes();
    result.sent_ns = gates_.TakeSent();
    return result;
  }

  const Graph& graph_;
  Gates gates_;
  Devices devices_;
  fluid::Links links_;  // a connection per device; a serial one has no links
  Overlap overlap_;
  Memory memory_;
  std::vector<Flow> flows_;                         // of each device that is a connection
  std::vector<fluid::Links::Beginning> beginning_;  // flows that begin now, where links have bursts
  Events events_;
  std::vector<Event> at_once_;  // events of now_, in no order
  std::vector<Operation> operations_;
  TimeNs now_ = 0;
  size_t left_;            // operations that have not ended
  uint64_t sent_ = 0;      // by gates
  size_t asks_ = 0;        // events that are policies' wishes
  int64_t idle_asks_ = 0;  // times in a row at which nothing else was to come
};

}  // namespace

Result Replay(const Graph& graph, const PolicyMaker& make) {
  Validate(graph);
  return Replayer(graph, make).Run();
}

}  // namespace prophet::graph
