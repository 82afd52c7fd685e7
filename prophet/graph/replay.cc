// The loop: what happens next, and what follows from it.
//
// At one time, in this order and again from the start as long as there is anything: ends and
// readiness; devices begin what they can; one gate's policy is asked. Then time goes on.
//
// What the loop touches of an operation is one cache line; the graph's arrays are read once before
// and, for flows, gates and memory only, during the replay.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "prophet/graph/events.h"
#include "prophet/graph/gates.h"
#include "prophet/graph/graph.h"
#include "prophet/graph/links.h"

namespace prophet::graph {
namespace {

using engine::kNever;

// How often in a row, while nothing else is to come, policies may say that they will send later.
constexpr int64_t kPatience = 100'000;

struct alignas(64) Operation {
  enum Flag : uint32_t { kGated = 1, kAcknowledges = 2, kMarks = 4, kMemory = 8 };
  TimeNs ready = 0;  // as far as is known
  TimeNs start = 0;
  TimeNs end = 0;
  TimeNs duration = 0;
  TimeNs latency = 0;
  uint32_t first_successor = 0;
  uint32_t successors = 0;
  uint32_t missing = 0;  // dependencies that it has not heard of
  int32_t device = -1;
  int32_t held_by = -1;
  uint32_t flags = 0;
};
static_assert(sizeof(Operation) == 64);

// Waits for its device.
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

struct DeviceState {
  std::vector<Waiting> queue;  // a heap
  int64_t free = 1;            // units
  int32_t last = -1;           // that ended here; of a connection, first of all the one under way
  bool connection = false;
  bool by_priority = false;
  bool cost_on_first_link = false;
  bool touched = false;
  bool in_cost = false;  // a connection's first link bears a cost now
};

struct Pool {
  int64_t used = 0;
  int64_t peak = 0;
  bool touched = false;
};

class Replayer {
 public:
  Replayer(const Graph& graph, const PolicyMaker& make)
      : graph_(graph),
        gates_(graph, make),
        links_(graph.devices, graph.link_bps),
        operations_(graph.duration_ns.size()),
        devices_(graph.devices.size()),
        pools_(static_cast<size_t>(graph.pools)),
        left_(operations_.size()) {
    for (size_t number = 0; number < devices_.size(); ++number) {
      const Device& from = graph.devices[number];
      DeviceState& device = devices_[number];
      device.connection = from.kind == Device::Kind::kConnection;
      device.free = device.connection ? 1 : from.units;
      device.by_priority = from.by_priority;
      device.cost_on_first_link = from.cost_on_first_link;
    }
    ReadOperations();
  }

  Result Run() {
    for (size_t i = 0; i < operations_.size(); ++i) {
      if (operations_[i].missing == 0) Heard(static_cast<int32_t>(i));
    }
    while (left_ > 0) {
      if (TakeOne() || BeginOnDevices()) continue;
      if (gates_.AskOne(
              now_, [&](int32_t operation, int32_t because) { LetGo(operation, because); },
              [&](size_t gate, TimeNs at) { AskAt(gate, at); })) {
        continue;
      }
      if (!Advance()) RefuseWhatIsLeft();
    }
    NotePeaks();
    links_.Settle(now_);
    return Finish();
  }

 private:
  void ReadOperations() {
    for (size_t i = 0; i < operations_.size(); ++i) {
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
      if (!graph_.memory_pool.empty() && graph_.memory_pool[i] >= 0) {
        operation.flags |= Operation::kMemory;
      }
    }
    for (const int32_t successor : graph_.successor) ++At(successor).missing;
  }

  Operation& At(int32_t number) { return operations_[static_cast<size_t>(number)]; }
  DeviceState& DeviceOf(const Operation& operation) {
    return devices_[static_cast<size_t>(operation.device)];
  }

  void Add(TimeNs time, Kind kind, int32_t index) {
    if (time > now_) return events_.Add({time, kind, index});
    at_once_.push_back({time, kind, index});
  }

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
      DeviceState& connection = devices_[links_.Take()];
      if (std::exchange(connection.in_cost, false)) {
        BeginBytes(connection.last);
      } else {
        End(connection.last);
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
        return End(event.index);
      case Kind::kBytes:
        return BeginBytes(event.index);
      case Kind::kAcked:
        return gates_.OnAcked(event.index);
      case Kind::kAsk:
        --asks_;
        return gates_.OnAsk(static_cast<size_t>(event.index), now_);
    }
  }

  // All that it depends on has ended, and been heard of at operation.ready.
  void Heard(int32_t number) {
    const TimeNs ready = At(number).ready;
    if (ready <= now_) return Ready(number);
    events_.Add({ready, Kind::kReady, number});
  }

  void Ready(int32_t number) {
    Operation& operation = At(number);
    if ((operation.flags & Operation::kGated) != 0) return gates_.OnReady(number);
    Queue(number, static_cast<uint64_t>(number));
  }

  void LetGo(int32_t number, int32_t because) {
    Operation& operation = At(number);
    if (now_ > operation.ready) operation.held_by = because;
    Queue(number, operations_.size() + sent_++);
  }

  void AskAt(size_t gate, TimeNs at) {
    ++asks_;
    events_.Add({at, Kind::kAsk, static_cast<int32_t>(gate)});
  }

  void Queue(int32_t number, uint64_t order) {
    Operation& operation = At(number);
    if (operation.device < 0) {
      Start(number);
      return Add(now_ + operation.duration, Kind::kEnded, number);
    }
    DeviceState& device = DeviceOf(operation);
    const int64_t urgency = device.by_priority && !graph_.priority.empty()
                                ? -int64_t{graph_.priority[static_cast<size_t>(number)]}
                                : 0;
    device.queue.push_back({urgency, now_, order, number});
    std::push_heap(device.queue.begin(), device.queue.end());
    Touch(operation.device);
  }

  void Touch(int32_t number) {
    if (std::exchange(devices_[static_cast<size_t>(number)].touched, true)) return;
    touched_.push_back(number);
  }

  bool BeginOnDevices() {
    if (touched_.empty()) return false;
    for (const int32_t number : touched_) {
      DeviceState& device = devices_[static_cast<size_t>(number)];
      device.touched = false;
      while (device.free > 0 && !device.queue.empty()) {
        const Waiting next = device.queue.front();
        std::pop_heap(device.queue.begin(), device.queue.end());
        device.queue.pop_back();
        --device.free;
        if (now_ > next.since) At(next.operation).held_by = device.last;
        BeginOn(device, next.operation);
      }
    }
    touched_.clear();
    return true;
  }

  void BeginOn(DeviceState& device, int32_t number) {
    const Operation& operation = At(number);
    Start(number);
    if (!device.connection) return Add(now_ + operation.duration, Kind::kEnded, number);
    device.last = number;
    if (operation.duration == 0) return BeginBytes(number);
    if (!device.cost_on_first_link) return Add(now_ + operation.duration, Kind::kBytes, number);
    device.in_cost = true;
    links_.StartCost(static_cast<size_t>(operation.device), operation.duration, now_);
  }

  void BeginBytes(int32_t number) {
    const auto connection = static_cast<size_t>(At(number).device);
    const int64_t bytes =
        graph_.size_bytes.empty() ? 0 : graph_.size_bytes[static_cast<size_t>(number)];
    if (bytes == 0 || !links_.Limits(connection)) return Add(now_, Kind::kEnded, number);
    links_.StartBytes(connection, bytes, now_);
  }

  void Start(int32_t number) {
    Operation& operation = At(number);
    operation.start = now_;
    if (operation.flags == 0) return;
    if ((operation.flags & Operation::kMarks) != 0) gates_.OnStart(number);
    if ((operation.flags & Operation::kMemory) != 0) {
      Use(number, graph_.allocated_bytes[static_cast<size_t>(number)]);
    }
  }

  void End(int32_t number) {
    const Operation& operation = At(number);
    At(number).end = now_;
    --left_;
    if (operation.device >= 0) {
      DeviceState& device = DeviceOf(operation);
      ++device.free;
      device.last = number;
      if (!device.queue.empty()) Touch(operation.device);
    }
    const TimeNs heard = now_ + operation.latency;
    if (operation.flags != 0) {
      if ((operation.flags & Operation::kMemory) != 0) {
        Use(number, -graph_.freed_bytes[static_cast<size_t>(number)]);
      }
      if ((operation.flags & Operation::kAcknowledges) != 0) Add(heard, Kind::kAcked, number);
    }
    for (uint32_t i = 0; i < operation.successors; ++i) {
      const int32_t next = graph_.successor[operation.first_successor + i];
      Operation& successor = At(next);
      successor.ready = std::max(successor.ready, heard);
      if (--successor.missing == 0) Heard(next);
    }
  }

  void Use(int32_t number, int64_t bytes) {
    const int32_t of = graph_.memory_pool[static_cast<size_t>(number)];
    Pool& pool = pools_[static_cast<size_t>(of)];
    pool.used += bytes;
    if (std::exchange(pool.touched, true)) return;
    touched_pools_.push_back(of);
  }

  // Before time goes on.
  void NotePeaks() {
    for (const int32_t of : touched_pools_) {
      Pool& pool = pools_[static_cast<size_t>(of)];
      pool.touched = false;
      pool.peak = std::max(pool.peak, pool.used);
    }
    touched_pools_.clear();
  }

  bool Advance() {
    NotePeaks();
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
    Result result;
    const size_t count = operations_.size();
    result.ready_ns.resize(count);
    result.start_ns.resize(count);
    result.end_ns.resize(count);
    result.held_by.resize(count);
    result.device_busy_ns.resize(devices_.size());
    result.device_bytes.resize(devices_.size());
    result.link_bytes.resize(graph_.link_bps.size());
    for (size_t i = 0; i < count; ++i) {
      const Operation& operation = operations_[i];
      result.ready_ns[i] = operation.ready;
      result.start_ns[i] = operation.start;
      result.end_ns[i] = operation.end;
      result.held_by[i] = operation.held_by;
      result.makespan_ns = std::max(result.makespan_ns, operation.end);
      if (operation.device < 0) continue;
      const auto device = static_cast<size_t>(operation.device);
      result.device_busy_ns[device] += operation.end - operation.start;
      if (!graph_.size_bytes.empty()) result.device_bytes[device] += graph_.size_bytes[i];
    }
    for (size_t device = 0; device < devices_.size(); ++device) {
      for (const int32_t link : graph_.devices[device].route) {
        result.link_bytes[static_cast<size_t>(link)] += result.device_bytes[device];
      }
    }
    for (size_t link = 0; link < graph_.link_bps.size(); ++link) {
      result.link_busy_ns.push_back(links_.busy_ns(link));
    }
    for (const Pool& pool : pools_) result.peak_bytes.push_back(pool.peak);
    result.sent_ns = gates_.TakeSent();
    return result;
  }

  const Graph& graph_;
  Gates gates_;
  Links links_;
  Events events_;
  std::vector<Event> at_once_;  // events of now_, in no order
  std::vector<Operation> operations_;
  std::vector<DeviceState> devices_;
  std::vector<int32_t> touched_;  // devices that may be able to begin something
  std::vector<Pool> pools_;
  std::vector<int32_t> touched_pools_;
  TimeNs now_ = 0;
  size_t left_;           // operations that have not ended
  uint64_t sent_ = 0;     // by gates
  size_t asks_ = 0;        // events that are policies' wishes
  int64_t idle_asks_ = 0;  // times in a row at which nothing else was to come
};

}  // namespace

Result Replay(const Graph& graph, const PolicyMaker& make) {
  Validate(graph);
  return Replayer(graph, make).Run();
}

}  // namespace prophet::graph
