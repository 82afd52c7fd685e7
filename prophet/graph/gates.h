// The policies of a graph's gates, driven as native/plugin drives its own: told of all that happens
// at one time, then asked until there is nothing to send.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "prophet/graph/graph.h"
#include "prophet/next_ask.h"
#include "prophet/policy.h"

namespace prophet::graph {

class Gates {
 public:
  static constexpr int32_t kNone = -1;

  // Throws what `make` throws.
  Gates(const Graph& graph, const PolicyMaker& make);

  bool IsGated(int32_t operation) const { return At(row_of_, operation) != kNone; }
  bool Acknowledges(int32_t operation) const { return At(first_acked_, operation) != kNone; }
  bool Marks(int32_t operation) const { return At(first_mark_, operation) != kNone; }

  // What happens to operations. The policies hear of it when they are asked.
  void OnReady(int32_t operation);
  void OnAcked(int32_t operation);  // this one acknowledges
  void OnStart(int32_t operation);  // this one marks
  void OnAsk(size_t gate, TimeNs now);

  // One policy for which something has happened, the first, is told of it and asked until it has
  // nothing to send: `send(operation, because)` for what it sends, `because` the operation that
  // acknowledged something now (kNone: none did); `ask(gate, time)` if it wants to be asked again.
  // False: there is no such policy. Throws Refused.
  template <typename Send, typename Ask>
  bool AskOne(TimeNs now, const Send& send, const Ask& ask) {
    if (changed_ == 0) return false;
    size_t number = 0;
    while (!gates_[number].changed) ++number;
    const int32_t because = Tell(number, now);
    Gate& gate = gates_[number];
    for (;;) {
      const Decision decision = gate.policy->Next(now);
      if (decision.kind == Decision::Kind::kSend) {
        send(Sent(gate, decision.item.key, now), because);
      } else {
        if (const auto again = gate.next_ask.After(decision, now)) ask(number, *again);
        return true;
      }
    }
  }

  // The first operation that a policy has been offered and has not sent; kNone: there is none.
  int32_t kept() const;
  std::vector<TimeNs> TakeSent() { return std::move(sent_ns_); }

 private:
  enum class State : uint8_t { kAway, kPending, kInFlight };
  struct Call {
    enum class What : uint8_t { kAcked, kReady, kIteration };
    What what;
    int32_t operation;  // acknowledged, ready, or marking
    int32_t row;        // of a gated operation
    bool operator<(const Call& other) const;
  };
  struct Gate {
    std::unique_ptr<Policy> policy;
    std::vector<Call> calls;
    bool changed = false;
    TimeNs told_at = 0;        // the last time
    int32_t acked_by = kNone;  // the first operation that acknowledged something then
    NextAsk next_ask;
    std::unordered_map<uint64_t, int32_t> row_of_key;  // of the last that was offered with it
  };

  static int32_t At(const std::vector<int32_t>& of_operation, int32_t operation) {
    return of_operation.empty() ? kNone : of_operation[static_cast<size_t>(operation)];
  }
  Gate& GateOf(int32_t row) {
    return gates_[static_cast<size_t>(graph_.gated_gate[static_cast<size_t>(row)])];
  }
  void Changed(Gate& gate);
  void Add(Gate& gate, const Call& call);
  int32_t Tell(size_t gate, TimeNs now);
  void Offer(Gate& gate, int32_t row, TimeNs now);
  void Acknowledge(Gate& gate, int32_t row, TimeNs now);
  int32_t Sent(Gate& gate, uint64_t key, TimeNs now);

  const Graph& graph_;
  std::vector<Gate> gates_;
  size_t changed_ = 0;  // gates
  // Of each operation; empty where nothing is gated. Lists go on in next_acked_ and next_mark_.
  std::vector<int32_t> row_of_;
  std::vector<int32_t> first_acked_;
  std::vector<int32_t> first_mark_;
  std::vector<int32_t> next_acked_;  // of each gated operation
  std::vector<int32_t> next_mark_;   // of each mark
  std::vector<State> state_;         // of each gated operation
  std::vector<TimeNs> sent_ns_;      // of each gated operation
};

}  // namespace prophet::graph
