// The PUSH stage of the local root: what goes on the wire next is decided by a policy.
//
// Threads. Add(): the thread that finished the stage before. PeersChanged(): the thread that
// listens to local ranks. Take(): the PUSH loop. Acked(): ps-lite's customer thread, when the
// server has acknowledged a push. OnIteration(), PreferredPartitionBytes(), WhatItLearned(): the
// thread that trains. size(): any. One mutex guards everything here, the policy included. Under it,
// BytePS is called only for a key's readiness and its server. These take the lock of keys, and then
// that of the placement; nobody waits for the mutex here while holding one of them. The recorder's
// is innermost.
//
// Invariants. A key is known to the policy at most once at a time: further tasks of the same key
// wait in order until it is acknowledged. A task leaves exactly once. Nothing waits for a
// particular key.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "byteps/common/ready_table.h"
#include "native/plugin/stage.h"
#include "native/plugin/staged_plan.h"
#include "prophet/policy.h"

namespace byteprophet {

class PushGate {
 public:
  // `iteration`: the one that has begun last.
  PushGate(std::unique_ptr<prophet::Policy> policy, byteps::common::ReadyTable* ready,
           int64_t iteration = 0);

  void Add(Task task);
  // This key's count in `table` has changed: a waiting task may have become ready.
  void PeersChanged(const byteps::common::ReadyTable* table, uint64_t key);
  // The next task to send, or null. May sleep up to kIdleWait.
  Task Take();
  void Acked(uint64_t key);
  // An iteration begins; `begun.plan` was checked for this policy.
  void OnIteration(const StagedPlan::Begun& begun);
  size_t size();
  std::optional<int64_t> PreferredPartitionBytes();
  std::optional<prophet::Learned> WhatItLearned();

  // Partitions handed out by all gates of this process.
  static uint64_t scheduled_partitions();

 private:
  // Both REQUIRE: mutex_ is held.
  // Gives the policy the next task of this key if it has become ready. Whatever can make it so
  // calls this: no call looks through all that waits.
  void OfferReady(uint64_t key);
  Task TakeDecided(prophet::TimeNs now, prophet::TimeNs* ask_again_ns);

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::unique_ptr<prophet::Policy> policy_;
  byteps::common::ReadyTable* const ready_;
  uint32_t iteration_;
  std::unordered_map<uint64_t, Task> offered_;  // known to the policy, not yet taken
  std::unordered_set<uint64_t> in_flight_;      // taken, not yet acknowledged
  // By key, in order: local peers not ready, or the key is still offered or in flight.
  std::unordered_map<uint64_t, std::deque<Task>> waiting_;
  size_t waiting_count_ = 0;
};

}  // namespace byteprophet
