// One stage of BytePS' pipeline (COPYD2H, PULL, ...): tasks in order of arrival, taken by the one
// loop thread that serves the stage, which sleeps while there is nothing to take.
//
// A stage with a credit in bytes is BytePS' own scheduling (of REDUCE): tasks in order of priority,
// then key; a task is taken if its length is within the credit left, and takes it until the stage
// is done with the task. A task that is longer than what is left is passed by, so that less urgent,
// smaller ones overtake it; one that is longer than all of it (partition sizes can change) goes
// when nothing else is in the stage. The thread that serves the stage goes on with other stages
// meanwhile.
//
// Threads. Add(): any thread of BytePS. PeersChanged(): the thread that listens to local ranks.
// Take(): the loop thread of the stage. Finished(): whoever is done with a task. A Waiter belongs
// to one loop thread; two stages that one thread serves (REDUCE and BROADCAST) share it, so that a
// task for either wakes it. Its mutex guards the tasks of all stages that share it; BytePS' ready
// table has a lock of its own that is taken inside ours, never the other way round. Tasks are never
// destroyed under the lock: their last reference may need Python's.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "byteps/common/common.h"
#include "byteps/common/ready_table.h"

namespace byteprophet {

using Task = std::shared_ptr<byteps::common::TensorTableEntry>;

// How long a loop thread sleeps when nothing is announced: BytePS' loops look for shutdown between
// two calls.
inline constexpr std::chrono::milliseconds kIdleWait{50};
// How long it sleeps while a task is there whose GPU event has not come: that does not announce
// itself.
inline constexpr std::chrono::microseconds kUnreadyWait{100};

class Stage;

struct Waiter {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Stage*> stages;  // that share it; complete before any loop thread starts
};

class Stage {
 public:
  // `ready` may be null: then a task is ready when its event is. `credit_bytes` may be none.
  Stage(std::shared_ptr<Waiter> waiter, byteps::common::ReadyTable* ready,
        std::optional<int64_t> credit_bytes = std::nullopt);

  void Add(Task task);
  // A count in `table` has changed: tasks of this stage may have become ready.
  void PeersChanged(const byteps::common::ReadyTable* table);
  // The first ready task, or null. Sleeps up to kIdleWait if `may_wait` and no stage of this thread
  // has a ready task.
  Task Take(bool may_wait);
  // The stage is done with a task of this length that was taken.
  void Finished(int64_t size_bytes);
  // The task with this key, ready or not, or null.
  Task TakeKey(uint64_t key);
  size_t size();

 private:
  // All REQUIRE: waiter_->mutex is held.
  std::deque<Task>::iterator FirstReady();
  Task TakeReady();
  Task Remove(std::deque<Task>::iterator it);
  // Of this thread's stages: whether any but this one has a ready task; whether any has a task that
  // only waits for its event.
  bool AnotherIsReady();
  bool AnyWaitsForAnEvent();
  bool CreditSuffices(const Task& task) const;

  const std::shared_ptr<Waiter> waiter_;
  byteps::common::ReadyTable* const ready_;
  std::deque<Task> tasks_;  // guarded by waiter_->mutex
  const std::optional<int64_t> whole_credit_bytes_;
  std::optional<int64_t> credit_bytes_;  // left; guarded by waiter_->mutex
};

}  // namespace byteprophet
