// A graph of operations to replay on virtual time, and what came of it. Plain data.
//
// The model. An operation becomes ready when it may begin (`release_ns`) and has heard of the end
// of all that it depends on: their end plus their `latency_ns`, which occupies nothing. Without a
// device it begins at once and takes its duration. A device serves one operation at a time, or as
// many as it has units, in the order in which they became ready, or by priority first; it is never
// idle while one waits, and what is under way is not interrupted. On a connection an operation is a
// flow: its duration, a fixed cost in front of its bytes, then its bytes, which cross all links of
// the connection's route at once. Flows under way share every link max-min fairly, as fluids, in
// whole bits per second (as prophet/fluid/links.h does). Where a connection says so, its first
// link bears the cost as it would bear as many bytes as pass in that time; else nothing does. A
// limited link may have a burst, as a token bucket does: what it could have carried while nothing
// was under way, so many bytes at most (and as many at first), passes it at once; of flows that
// begin at one time, the smaller connection's first. Where a route has other limited links, such
// bytes cross these at their rates, before the rest of the operation's bytes begin.
//
// Devices of one overlap group slow each other down: an operation on one of its serial devices
// takes `overlap_slowdown` longer while one of its connections has a flow, and so do the bytes on
// these while one of its serial devices is busy.
//
// A gate is a policy in front of operations. A gated operation that becomes ready is offered to it
// and goes on to its device when the policy sends it. It is acknowledged when `acked_by` has been
// heard of. An operation may mark, by its start, that an iteration begins for a gate. A policy is
// asked after all that happens at one time has happened, and when it wished to be asked again.
//
// Order. Whatever can happen at one time without a choice happens first: ends, readiness. Then all
// devices begin what they can; what that brings about at the same time comes next, and so on. Then
// gates are asked, the first first, one at a time. Thus results do not depend on the history of
// the program (flows over links with bursts begin behind the devices). Ties: of what became ready
// at one time, the smaller operation begins first, and what gates let go comes behind, in the order
// in which they did. A policy is told of acknowledgements first, then of all else, in the order of
// operations. Nothing but integers: the same input gives the same bits.
//
// Where this goes beyond serial queues and links: gates stand in front of any device, and any
// operation may have bytes (they take time on connections only; elsewhere they are counted), so
// that policies of local reductions can be replayed. A flow's cost can be shared (above), because
// the engine of simulated jobs has it so, and a job as a graph must come out the same.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "prophet/item.h"
#include "prophet/policy.h"

namespace prophet::graph {

struct Device {
  enum class Kind : uint8_t { kSerial, kConnection };
  Kind kind = Kind::kSerial;
  bool by_priority = false;          // the larger priority first, then as else
  bool cost_on_first_link = false;   // a connection's
  int64_t units = 1;                 // a serial device's
  std::span<const int32_t> route{};  // a connection's links
  // The weight of each link, in parts of fluid::kWhole; empty: one.
  std::span<const int32_t> weights{};
  int32_t overlap_group = -1;    // -1: none; a serial device that has one has one unit
  int32_t overlap_slowdown = 0;  // in parts of fluid::kWhole
};

// Arrays have one entry per operation unless something else is said; those of the second kind may
// be empty, for all 0.
struct Graph {
  std::span<const int64_t> duration_ns{};
  std::span<const int32_t> device{};  // -1: none
  std::span<const int64_t> size_bytes{};
  std::span<const int64_t> latency_ns{};
  std::span<const int64_t> release_ns{};
  std::span<const int32_t> priority{};
  // The successors of operation i are successor[first_successor[i]] and on, up to
  // first_successor[i + 1].
  std::span<const int64_t> first_successor{};  // one more than operations
  std::span<const int32_t> successor{};
  // Memory: taken at the start, given back at the end, of one pool (-1: none). All three or none.
  std::span<const int32_t> memory_pool{};
  std::span<const int64_t> allocated_bytes{};
  std::span<const int64_t> freed_bytes{};
  int32_t pools = 0;

  std::span<const Device> devices{};
  std::span<const int64_t> link_bps{};          // of each link; 0: not limited
  std::span<const int64_t> link_burst_bytes{};  // as many; may be empty

  // Gated operations, in any order.
  std::span<const int32_t> gated_operation{};
  std::span<const int32_t> gated_gate{};
  std::span<const uint64_t> gated_key{};  // unique among what is pending or in flight at its gate
  std::span<const uint32_t> gated_server{};
  std::span<const int32_t> gated_priority{};  // the item's
  std::span<const int32_t> gated_acked_by{};
  // Operations that say that an iteration begins, and for which gate.
  std::span<const int32_t> mark_operation{};
  std::span<const int32_t> mark_gate{};
  int32_t gates = 0;
};

struct Result {
  // Of each operation.
  std::vector<TimeNs> ready_ns;
  std::vector<TimeNs> start_ns;
  std::vector<TimeNs> end_ns;
  // What kept it after it was ready: the operation that had its device until then, or the one whose
  // acknowledgement made its policy send it. -1: nothing, or its policy waited for no operation.
  std::vector<int32_t> held_by;
  std::vector<TimeNs> sent_ns;         // of each gated operation: when its policy sent it
  std::vector<TimeNs> device_busy_ns;  // all units together
  std::vector<int64_t> device_bytes;
  std::vector<TimeNs> link_busy_ns;  // with a flow under way on it
  std::vector<int64_t> link_bytes;
  // The most that was in use at any time, where what ends frees before what starts takes; from 0.
  std::vector<int64_t> peak_bytes;
  TimeNs makespan_ns = 0;  // the last end
};

// Of gate `gate`.
using PolicyMaker = std::function<std::unique_ptr<Policy>(size_t gate)>;

// What cannot be replayed, in one line.
class Refused : public std::invalid_argument {
 public:
  explicit Refused(const std::string& what, int64_t operation = -1)
      : std::invalid_argument("graph: " + what), operation_(operation) {}
  // The one that the line names; -1: none.
  int64_t operation() const { return operation_; }

 private:
  int64_t operation_;
};

// Throws Refused. That there is no cycle is seen only by Replay and FindCycle.
void Validate(const Graph& graph);
// An operation on a cycle; -1: there is none. `graph` is valid.
int64_t FindCycle(const Graph& graph);

// Throws what Validate and `make` throw, and Refused for a cycle, for a policy that keeps what it
// was given, and for keys and acknowledgements that cannot be.
Result Replay(const Graph& graph, const PolicyMaker& make);

// From the last end (of several the smallest operation's) back through what each operation waited
// for: what it was held by, else the dependency of which it heard last (of several the smallest).
// In order of time. `result` is the graph's.
std::vector<int32_t> CriticalPath(std::span<const int64_t> first_successor,
                                  std::span<const int32_t> successor,
                                  std::span<const int64_t> latency_ns,
                                  std::span<const TimeNs> ready_ns, std::span<const TimeNs> end_ns,
                                  std::span<const int32_t> held_by);

// `wanted` and all that they need: what they depend on, what acknowledges gated ones, and what
// marks iterations of their gates. Ascending. Replayed alone, these operations come out as in the
// whole graph if nothing else used their devices, links, overlap groups and gates. Throws what
// Validate throws.
std::vector<int32_t> Closure(const Graph& graph, std::span<const int32_t> wanted);

}  // namespace prophet::graph
