// A job to simulate, and what came out of it. Plain data.
//
// The model. W workers train on M servers for some iterations. A worker's iteration is the paced
// job's, the one that prophet/bound.h bounds: the forward layers run in order, each waits for its
// own tensor (of the iteration before; the first waits for nothing); then backward, during which
// tensors become ready at given times; the next iteration begins when backward has ended. A tensor
// is cut into partitions. They go to the worker's policy, which is driven as native/plugin drives
// it: asked after whatever happens at one time has happened, and again until it has nothing to
// send; acknowledged when the server's acknowledgement is back.
//
// Exact: all of it is integer arithmetic on integer nanoseconds; transfers share links max-min
// fairly, as fluids (fabric.h); what happens at one time is done in a fixed order (simulation.cc).
// The same input gives the same bits, whatever the machine. Approximations: a message's cost takes
// the sender's link as so many more bytes would (alpha + bytes/B). Pull requests and
// acknowledgements have neither bytes nor cost; a request arrives with the push that it follows.
// Delays are constant. A message leaves its queue at once and is at the other end one delay after
// its last byte left. Nothing is lost, nobody is late: no jitter, no CPU. Compute does not share
// anything with communication.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "prophet/item.h"
#include "prophet/policy.h"

namespace prophet::engine {

struct Job {
  // Tensors, in forward order.
  std::span<const int64_t> forward_ns{};
  std::span<const int64_t> ready_ns{};         // from the start of backward
  std::span<const int64_t> first_partition{};  // one more than tensors; ends with all partitions
  // Partitions, tensor after tensor.
  std::span<const int64_t> size_bytes{};
  std::span<const int32_t> server{};
  TimeNs backward_ns = 0;
  int64_t iterations = 1;
  // Payload rate of each link, per direction; 0: not limited. As many as there are workers,
  // servers.
  std::span<const int64_t> worker_bandwidth_bps{};
  std::span<const int64_t> server_bandwidth_bps{};
  TimeNs delay_ns = 0;              // one way, of anything
  TimeNs message_cost_ns = 0;       // alpha, at the sender of a push or of an answer to a pull
  int64_t sum_bps = 0;              // at which one server thread copies or adds up; 0: in no time
  int64_t sum_threads = 1;          // per server; a key has its thread
  bool answer_by_priority = false;  // else answers leave in the order in which they were due
  // As BytePS is shipped: a pull is requested when its push is acknowledged, in the same socket,
  // behind other pushes; acknowledgements share a socket with answers to pulls.
  bool stock_transport = false;
  bool barrier = false;  // forward waits for all tensors
  bool record = false;   // transfers
};

// A partition's way in one iteration, as the plug-in records it (native/plugin/transfers.h).
// Iterations count from 1, as there.
struct Transfer {
  uint64_t key = 0;
  uint64_t size_bytes = 0;
  TimeNs ready_ns = 0;
  TimeNs sent_ns = 0;
  TimeNs acked_ns = 0;
  TimeNs pulled_ns = 0;
  uint32_t server = 0;
  uint32_t iteration = 0;
  int32_t priority = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(Transfer) == 64);

// One direction of one link.
struct LinkUse {
  TimeNs busy_ns = 0;  // with a message under way on it, its cost included
  int64_t bytes = 0;
  int64_t messages = 0;
};

struct Result {
  // By worker, then iteration. Iteration i lasts from start_ns[i] to start_ns[i + 1].
  std::vector<TimeNs> start_ns;                  // iterations + 1 of each worker
  std::vector<TimeNs> backward_start_ns;         // iterations of each worker
  std::vector<std::vector<Transfer>> transfers;  // of each worker, in order of completion
  // Workers then servers.
  std::vector<LinkUse> up;
  std::vector<LinkUse> down;
  TimeNs end_ns = 0;  // everything has arrived
  uint64_t events = 0;
};

// The policy of any worker: all are alike.
using PolicyMaker = std::function<std::unique_ptr<Policy>()>;

constexpr uint64_t KeyOf(uint64_t tensor, uint64_t number) { return tensor << 16 | number; }
// The first layer's tensor is the most urgent.
constexpr int32_t PriorityOf(int64_t tensor) { return static_cast<int32_t>(-1 - tensor); }

// Throws std::invalid_argument, in one line, for what cannot be simulated.
void Validate(const Job& job);

// Throws what Validate and `make` throw, and std::logic_error if a policy keeps what it was given.
Result Simulate(const Job& job, const PolicyMaker& make);

}  // namespace prophet::engine
