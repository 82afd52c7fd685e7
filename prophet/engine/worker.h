// One worker of a simulated job: the paced iteration, and the policy that holds its queue.
//
// It schedules its own events (kReady, kEnded, kAsk) and is told of what arrives. Nothing here
// knows links or servers. Forward needs no events: when a tensor that it waits for has arrived, the
// ends of all layers up to the next missing one are known. Invariant: backward of an iteration
// starts only after all that the iteration before has sent is back, so a partition is at one place
// only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "prophet/engine/events.h"
#include "prophet/engine/job.h"
#include "prophet/next_ask.h"
#include "prophet/policy.h"

namespace prophet::engine {

// What all workers have in common.
struct Plan {
  explicit Plan(const Job& job);

  const Job& job;
  std::vector<uint32_t> tensor;        // of each partition
  std::vector<uint32_t> by_readiness;  // tensors; those of one time, the last layer's first
};

class Worker {
 public:
  // `starts`: job.iterations + 1 times, `backward_starts`: job.iterations, to be filled in.
  Worker(const Plan& plan, size_t number, std::unique_ptr<Policy> policy, Events& events,
         TimeNs* starts, TimeNs* backward_starts);

  void Start(TimeNs now) { StartIteration(now); }
  void OnReady(TimeNs now);
  void OnEnded(TimeNs now);
  void OnAsk(TimeNs now);
  void OnAcked(size_t partition, TimeNs now);
  void OnPulled(size_t partition, TimeNs now);

  // Something has happened since the policy was asked.
  bool wants_to_ask() const { return changed_; }
  // Asks the policy until it has nothing to send; `send(partition)` for everything that it sends.
  template <typename Send>
  void Ask(TimeNs now, const Send& send) {
    changed_ = false;
    for (;;) {
      const Decision decision = policy_->Next(now);
      if (decision.kind != Decision::Kind::kSend) return Wait(decision, now);
      const size_t partition = PartitionOf(decision.item.key);
      if (job_.record) transfers_[partition].sent_ns = now;
      send(partition);
    }
  }

  size_t pending() const { return policy_->pending(); }
  bool done() const { return iteration_ == job_.iterations && missing_ == 0; }
  std::vector<Transfer> TakeRecord() { return std::move(record_); }

 private:
  size_t PartitionOf(uint64_t key) const {
    return static_cast<size_t>(job_.first_partition[TensorOf(key)]) + (key & 0xffff);
  }
  void Wait(const Decision& decision, TimeNs now);
  void StartIteration(TimeNs now);
  void Forward(TimeNs now);
  void StartBackward(TimeNs now);
  void Offer(size_t tensor, TimeNs now);

  const Plan& plan_;
  const Job& job_;
  const size_t number_;
  const std::unique_ptr<Policy> policy_;
  Events& events_;
  TimeNs* const starts_;
  TimeNs* const backward_starts_;

  int64_t iteration_ = 0;            // under way
  bool forward_ = false;             // forward is not through yet
  size_t layer_ = 0;                 // the next of forward
  TimeNs forward_end_ = 0;           // of the layers before
  size_t next_ready_ = 0;            // in plan_.by_readiness
  std::vector<int64_t> missing_of_;  // partitions of each tensor that are not back
  int64_t missing_ = 0;              // all of them
  bool changed_ = false;
  NextAsk next_ask_;
  std::vector<Transfer> transfers_;  // by partition, under way
  std::vector<Transfer> record_;
};

}  // namespace prophet::engine
