// BytePS' scheduled queue, defined again. Loaded before BytePS, these definitions take the place of
// the shipped ones: every call in BytePS to an exported method goes through the dynamic linker.
//
// The object's size is fixed by BytePS' header, so the state lives in one table with a row per
// stage; BytePS has one queue per stage and process. A queue that is made again (resume after
// suspend) starts with a fresh row.
//
// Only PUSH at the local root is scheduled, and under bytescheduler-reduce REDUCE, as BytePS itself
// would; other stages are first in, first out as shipped, but sleep instead of polling. Credit is
// given back on the push acknowledgement, which reaches us as PULL's addTask: BytePS moves a task
// there, on ps-lite's customer thread, when the server has acknowledged it, and unlike reportFinish
// it has the key.
#include "byteps/common/scheduled_queue.h"

#include <array>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include "byteps/common/global.h"
#include "native/plugin/plugin.h"
#include "native/plugin/push_gate.h"
#include "native/plugin/stage.h"
#include "native/plugin/staged_plan.h"
#include "native/plugin/transfers.h"
#include "prophet/policy/bytescheduler_reduce.h"
#include "prophet/registry.h"
#include "prophet/settings_text.h"

namespace byteprophet {
namespace {

using byteps::common::BytePSGlobal;
using byteps::common::QueueType;

struct Rows {
  std::array<std::shared_ptr<Stage>, byteps::common::QueueNum> stages;
  std::shared_ptr<PushGate> gate;       // null where this process does not push
  std::shared_ptr<Waiter> nccl_waiter;  // of the one thread that serves REDUCE and BROADCAST
  Task pushed;                    // handed to the PUSH loop and not yet to PULL; that loop's own
  bool nccl_round_starts = true;  // the REDUCE and BROADCAST thread's own
};
// Written by the constructors, which BytePS calls before it starts any loop thread; but for the
// threads' own, only read afterwards.
Rows rows;

byteps::common::ReadyTable* ReadyTableOf(QueueType type) {
  switch (type) {
    case byteps::common::REDUCE:
      return BytePSGlobal::GetNccl()->IsSignalRoot() ? BytePSGlobal::GetReduceTable() : nullptr;
    case byteps::common::PCIE_REDUCE:
      return BytePSGlobal::IsCrossPcieSwitch() && BytePSGlobal::GetCpuReducer()->isRoot()
                 ? BytePSGlobal::GetPcieReduceTable()
                 : nullptr;
    case byteps::common::COMPRESS:
    case byteps::common::PUSH:
      return BytePSGlobal::IsRootDevice() ? BytePSGlobal::GetPushTable() : nullptr;
    case byteps::common::COPYH2D:
      return BytePSGlobal::IsRootDevice() ? nullptr : BytePSGlobal::GetCopyTable();
    case byteps::common::BROADCAST:
      return BytePSGlobal::GetNccl()->IsSignalRoot() ? BytePSGlobal::GetBroadcastTable() : nullptr;
    default:
      return nullptr;
  }
}

std::unique_ptr<prophet::Policy> ChosenPolicy() {
  const char* name = std::getenv("BYTEPS_SCHEDULER");
  const char* text = std::getenv("BYTEPROPHET_SETTINGS");
  try {
    const prophet::Settings settings = prophet::ParseSettings(text == nullptr ? "" : text);
    return prophet::MakePolicy(name == nullptr ? "" : name, settings);
  } catch (const std::invalid_argument& error) {
    // byteprophet.torch checks both before it loads this library; whoever loads it otherwise gets
    // the same line.
    std::cerr << "byteprophet: error: BYTEPS_SCHEDULER, BYTEPROPHET_SETTINGS: " << error.what()
              << std::endl;
    std::_Exit(2);
  }
}

std::shared_ptr<PushGate> MakeGate() {
  auto policy = ChosenPolicy();
  const std::string name(policy->name());
  StagedPlan::Get().Reset(name, policy->settings());
  auto gate = std::make_shared<PushGate>(std::move(policy), ReadyTableOf(byteps::common::PUSH),
                                         StagedPlan::Get().iteration());
  std::cerr << "byteprophet: scheduling pushes with " << name << ", partitions of "
            << BytePSGlobal::GetPartitionBound() << " bytes" << std::endl;
  return gate;
}

// The credit of a stage: of REDUCE, where BytePS schedules that, at the local rank that starts the
// reductions.
std::optional<int64_t> CreditBytes(QueueType type) {
  using Policy = prophet::ByteSchedulerReducePolicy;
  const char* name = std::getenv("BYTEPS_SCHEDULER");
  if (type != byteps::common::REDUCE || name == nullptr || name != Policy::kName ||
      !BytePSGlobal::GetNccl()->IsSignalRoot()) {
    return std::nullopt;
  }
  const int64_t partitions = ChosenPolicy()->settings().at(std::string(Policy::kCredit));
  return partitions * int64_t{BytePSGlobal::GetPartitionBound()};
}

// Whether a task is pulled right after it is pushed, not when the push is acknowledged. The request
// then travels beside its own push instead of behind later ones, and the server answers as soon as
// it has the sum. BytePS' bookkeeping allows it: it moves a task on once for the acknowledgement
// and once for the answer, whichever comes first, and only after both is the task past PULL. Not
// with compression, where push and pull share a mutable length, nor while BytePS traces, which
// notes a stage by the task's position.
bool PullsEarly(const Task& task) {
  return task->compressor == nullptr && !task->context->profile_flag;
}

// The PUSH loop asks for the next task when it has sent the one before: its pull request is behind
// it in the socket, as the server demands of a key's first.
void PullWhatWasPushed() {
  if (rows.pushed != nullptr) rows.stages[byteps::common::PULL]->Add(std::move(rows.pushed));
  rows.pushed = nullptr;
}

// Where the framework starts push_pulls by itself (MXNet's engine), its front cannot call
// OnIteration() in time. It numbers them by iteration instead, above this, in BytePS' `version`.
constexpr int kNumberedFrom = 1 << 30;

// Compressed gradients come from several threads: none gets past before the iteration has begun.
void NoteIteration(int version) {
  static std::mutex mutex;
  static int latest = kNumberedFrom;
  if (version <= kNumberedFrom) return;
  std::lock_guard<std::mutex> lock(mutex);
  if (version <= latest) return;
  latest = version;
  OnIteration();
}

// REDUCE, then BROADCAST, each several times until empty, then the collected group is posted: this
// thread may sleep only at the start of such a round, when it holds nothing.
bool MayWait(QueueType type) {
  if (type == byteps::common::BROADCAST) {
    rows.nccl_round_starts = true;
    return false;
  }
  if (type != byteps::common::REDUCE) return true;
  const bool starts = rows.nccl_round_starts;
  rows.nccl_round_starts = false;
  return starts;
}

}  // namespace

void PeersChanged(const byteps::common::ReadyTable* table, uint64_t key) {
  if (rows.gate != nullptr) rows.gate->PeersChanged(table, key);
  for (const auto& stage : rows.stages) {
    if (stage != nullptr) stage->PeersChanged(table);
  }
}

void OnIteration() {
  const StagedPlan::Begun begun = StagedPlan::Get().Begin();
  if (rows.gate != nullptr) rows.gate->OnIteration(begun);
}

int64_t PreferredPartitionBytes() {
  return rows.gate == nullptr ? 0 : rows.gate->PreferredPartitionBytes().value_or(0);
}

prophet::Learned WhatItLearned() {
  if (rows.gate == nullptr) return {};
  return rows.gate->WhatItLearned().value_or(prophet::Learned{});
}

}  // namespace byteprophet

namespace byteps {
namespace common {

using byteprophet::rows;

BytePSScheduledQueue::BytePSScheduledQueue(QueueType type)
    : _credits(0), _is_scheduled(false), _qt(type), _rt(byteprophet::ReadyTableOf(type)) {
  const bool nccl = type == REDUCE || type == BROADCAST;
  if (type == REDUCE) {
    rows.nccl_waiter = std::make_shared<byteprophet::Waiter>();
    rows.nccl_round_starts = true;
  }
  rows.stages[type] = std::make_shared<byteprophet::Stage>(
      nccl ? rows.nccl_waiter : std::make_shared<byteprophet::Waiter>(), _rt,
      byteprophet::CreditBytes(type));
  if (type == PUSH) {
    const bool pushes = BytePSGlobal::IsRootDevice() && BytePSGlobal::IsDistributed();
    byteprophet::TransferRecorder::Get().Forget();
    byteprophet::StagedPlan::Get().Reset("", {});
    rows.gate = pushes ? byteprophet::MakeGate() : nullptr;
    rows.pushed = nullptr;
  }
}

void BytePSScheduledQueue::addTask(std::shared_ptr<TensorTableEntry> task) {
  if (_qt == PUSH && rows.gate != nullptr) {
    byteprophet::NoteIteration(task->version);
    rows.gate->Add(std::move(task));
    return;
  }
  if (_qt == PULL && rows.gate != nullptr) {
    rows.gate->Acked(task->key);
    if (byteprophet::PullsEarly(task)) return;
  }
  // The first stage after PULL, whichever it is: the push was acknowledged and the pull answered.
  // There always is one: sums go back to local ranks.
  if (_qt > PULL && rows.gate != nullptr) byteprophet::TransferRecorder::Get().Pulled(task->key);
  rows.stages[_qt]->Add(std::move(task));
}

std::shared_ptr<TensorTableEntry> BytePSScheduledQueue::getTask() {
  const bool gated = _qt == PUSH && rows.gate != nullptr;
  if (gated) byteprophet::PullWhatWasPushed();
  auto task = gated ? rows.gate->Take() : rows.stages[_qt]->Take(byteprophet::MayWait(_qt));
  if (gated && task != nullptr && byteprophet::PullsEarly(task)) rows.pushed = task;
  if (task != nullptr) {
    task->ready_event = nullptr;
    recorderTs(task);
  }
  return task;
}

std::shared_ptr<TensorTableEntry> BytePSScheduledQueue::getTask(uint64_t key) {
  auto task = rows.stages[_qt]->TakeKey(key);
  if (task != nullptr) {
    task->ready_event = nullptr;
    recorderTs(task);
  }
  return task;
}

uint32_t BytePSScheduledQueue::pendingSize() {
  const size_t size =
      _qt == PUSH && rows.gate != nullptr ? rows.gate->size() : rows.stages[_qt]->size();
  return static_cast<uint32_t>(size);
}

void BytePSScheduledQueue::reportFinish(int size_bytes) { rows.stages[_qt]->Finished(size_bytes); }

void BytePSScheduledQueue::reset(uint64_t key, int count) {
  if (_rt != nullptr) _rt->SetReadyCount(key, count);
}

}  // namespace common
}  // namespace byteps
