#include "prophet/graph/gates.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace prophet::graph {

Gates::Gates(const Graph& graph, const PolicyMaker& make)
    : graph_(graph),
      gates_(static_cast<size_t>(graph.gates)),
      next_acked_(graph.gated_operation.size()),
      next_mark_(graph.mark_operation.size()),
      state_(graph.gated_operation.size()),
      sent_ns_(graph.gated_operation.size()) {
  for (size_t gate = 0; gate < gates_.size(); ++gate) gates_[gate].policy = make(gate);
  const size_t operations = graph.duration_ns.size();
  if (!graph.gated_operation.empty()) {
    row_of_.assign(operations, kNone);
    first_acked_.assign(operations, kNone);
  }
  for (size_t row = 0; row < graph.gated_operation.size(); ++row) {
    row_of_[static_cast<size_t>(graph.gated_operation[row])] = static_cast<int32_t>(row);
    int32_t& first = first_acked_[static_cast<size_t>(graph.gated_acked_by[row])];
    next_acked_[row] = first;
    first = static_cast<int32_t>(row);
  }
  if (!graph.mark_operation.empty()) first_mark_.assign(operations, kNone);
  for (size_t row = 0; row < graph.mark_operation.size(); ++row) {
    int32_t& first = first_mark_[static_cast<size_t>(graph.mark_operation[row])];
    next_mark_[row] = first;
    first = static_cast<int32_t>(row);
  }
}

bool Gates::Call::operator<(const Call& other) const {
  const bool acked = what == What::kAcked;
  const bool other_acked = other.what == What::kAcked;
  if (acked != other_acked) return acked;
  if (operation != other.operation) return operation < other.operation;
  return what > other.what;  // an operation that marks and waits begins the iteration that it is in
}

void Gates::OnReady(int32_t operation) {
  const int32_t row = row_of_[static_cast<size_t>(operation)];
  Add(GateOf(row), {Call::What::kReady, operation, row});
}

void Gates::OnAcked(int32_t operation) {
  for (int32_t row = first_acked_[static_cast<size_t>(operation)]; row != kNone;
       row = next_acked_[static_cast<size_t>(row)]) {
    Add(GateOf(row), {Call::What::kAcked, graph_.gated_operation[static_cast<size_t>(row)], row});
  }
}

void Gates::OnStart(int32_t operation) {
  for (int32_t row = first_mark_[static_cast<size_t>(operation)]; row != kNone;
       row = next_mark_[static_cast<size_t>(row)]) {
    const int32_t gate = graph_.mark_gate[static_cast<size_t>(row)];
    Add(gates_[static_cast<size_t>(gate)], {Call::What::kIteration, operation, kNone});
  }
}

void Gates::OnAsk(size_t number, TimeNs now) {
  if (gates_[number].next_ask.IsDue(now)) Changed(gates_[number]);
}

void Gates::Changed(Gate& gate) {
  changed_ += !gate.changed;
  gate.changed = true;
}

void Gates::Add(Gate& gate, const Call& call) {
  gate.calls.push_back(call);
  Changed(gate);
}

int32_t Gates::Tell(size_t number, TimeNs now) {
  Gate& gate = gates_[number];
  gate.changed = false;
  --changed_;
  std::sort(gate.calls.begin(), gate.calls.end());
  // It may be told several times at one time.
  if (std::exchange(gate.told_at, now) != now) gate.acked_by = kNone;
  for (const Call& call : gate.calls) {
    switch (call.what) {
      case Call::What::kAcked:
        Acknowledge(gate, call.row, now);
        if (gate.acked_by == kNone) {
          gate.acked_by = graph_.gated_acked_by[static_cast<size_t>(call.row)];
        }
        break;
      case Call::What::kReady:
        Offer(gate, call.row, now);
        break;
      case Call::What::kIteration:
        gate.policy->OnIteration(now);
        break;
    }
  }
  gate.calls.clear();
  return gate.acked_by;
}

void Gates::Offer(Gate& gate, int32_t row, TimeNs now) {
  const auto at = static_cast<size_t>(row);
  const int32_t operation = graph_.gated_operation[at];
  const auto [known, added] = gate.row_of_key.try_emplace(graph_.gated_key[at], row);
  if (!added && state_[static_cast<size_t>(known->second)] != State::kAway) {
    const int32_t other = graph_.gated_operation[static_cast<size_t>(known->second)];
    throw Refused("operation " + std::to_string(operation) + " comes to its gate while operation " +
                      std::to_string(other) + ", which has the same key, is not acknowledged",
                  operation);
  }
  known->second = row;
  state_[at] = State::kPending;
  const int64_t bytes =
      graph_.size_bytes.empty() ? 0 : graph_.size_bytes[static_cast<size_t>(operation)];
  gate.policy->OnReady({.key = graph_.gated_key[at],
                        .server = graph_.gated_server[at],
                        .priority = graph_.gated_priority[at],
                        .bytes = static_cast<uint64_t>(bytes)},
                       now);
}

void Gates::Acknowledge(Gate& gate, int32_t row, TimeNs now) {
  const auto at = static_cast<size_t>(row);
  if (state_[at] != State::kInFlight) {
    const int32_t operation = graph_.gated_operation[at];
    throw Refused("operation " + std::to_string(operation) +
                      " is acknowledged before its gate has let it go: what acknowledges it must "
                      "depend on it",
                  operation);
  }
  state_[at] = State::kAway;
  gate.policy->OnAcked({.key = graph_.gated_key[at]}, now);
}

int32_t Gates::Sent(Gate& gate, uint64_t key, TimeNs now) {
  const auto known = gate.row_of_key.find(key);
  if (known == gate.row_of_key.end() ||
      state_[static_cast<size_t>(known->second)] != State::kPending) {
    throw std::logic_error("a policy sends what it does not have");
  }
  const auto at = static_cast<size_t>(known->second);
  state_[at] = State::kInFlight;
  sent_ns_[at] = now;
  return graph_.gated_operation[at];
}

int32_t Gates::kept() const {
  int32_t first = kNone;
  for (size_t row = 0; row < state_.size(); ++row) {
    if (state_[row] != State::kPending) continue;
    const int32_t operation = graph_.gated_operation[row];
    if (first == kNone || operation < first) first = operation;
  }
  return first;
}

}  // namespace prophet::graph
