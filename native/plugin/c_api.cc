// The C interface of the plug-in, for ctypes. None needs Python's lock. Functions are thread safe,
// but byteprophet_on_iteration, _preferred_partition_bytes and _learned must not be called while
// BytePS resumes, which makes new gates; and byteprophet_next_done has one caller.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "native/plugin/plugin.h"
#include "native/plugin/push_gate.h"
#include "native/plugin/staged_plan.h"
#include "native/plugin/stamps.h"
#include "native/plugin/transfers.h"
#include "prophet/settings_text.h"

namespace {

// 0, or -1 and the line of the std::invalid_argument that `call` threw.
template <typename Call>
int Said(char* error, int error_bytes, Call call) {
  try {
    call();
    return 0;
  } catch (const std::invalid_argument& refused) {
    if (error_bytes > 0) {
      std::strncpy(error, refused.what(), static_cast<size_t>(error_bytes));
      error[error_bytes - 1] = '\0';
    }
    return -1;
  }
}

}  // namespace

extern "C" {

// Partitions that went through the policy in this process so far.
uint64_t byteprophet_scheduled_partitions() {
  return byteprophet::PushGate::scheduled_partitions();
}

// Sleeps until push_pull operations have finished, at most timeout_ms. Writes up to `capacity`
// handles, each once, and returns how many; 0 when the time is over. One thread per process calls
// it.
int byteprophet_next_done(int timeout_ms, int* handles, int capacity) {
  return byteprophet::NextDone(std::chrono::milliseconds(timeout_ms), handles, capacity);
}

void byteprophet_on_iteration() { byteprophet::OnIteration(); }

// OnIteration calls so far.
int64_t byteprophet_iteration() { return byteprophet::StagedPlan::Get().iteration(); }

// Records the transfers of every iteration (1), of every n-th (n), or none (0).
void byteprophet_record_transfers(int on) {
  byteprophet::TransferRecorder::Get().Record(static_cast<uint32_t>(std::max(0, on)));
}

// Copies up to `capacity` complete transfers, each once, and returns how many.
int byteprophet_take_transfers(byteprophet::Transfer* out, int capacity) {
  return byteprophet::TransferRecorder::Get().Take(out, capacity);
}

// Transfers that were recorded and lost, as nobody took them in time.
uint64_t byteprophet_lost_transfers() { return byteprophet::TransferRecorder::Get().lost(); }

// An operation for MXNet's engine (its EngineSyncFunc): writes down when it ran.
void byteprophet_stamp(void* /*run_context*/, void* number) {
  byteprophet::EngineStamps::Get().Stamp(reinterpret_cast<uint64_t>(number));
}

// Copies up to `capacity` stamps, each once, and returns how many.
int byteprophet_take_stamps(byteprophet::EngineStamp* out, int capacity) {
  return byteprophet::EngineStamps::Get().Take(out, capacity);
}

// The number of the tensor that BytePS declared under this name, -1 if there is none: the part of
// its keys above the lowest 16 bits.
int64_t byteprophet_tensor(const char* name) { return byteprophet::TensorNumber(name); }

// Has OnIteration apply these settings ("name=integer,...", the others keep their values) and ready
// times when the count reaches `at_iteration`; takes the place of what was staged before. 0, or -1
// and one line in `error` if it is too late or the policy refuses them.
int byteprophet_stage_plan(int64_t at_iteration, const char* settings_text,
                           const prophet::ReadyTime* times, int count, char* error,
                           int error_bytes) {
  return Said(error, error_bytes, [&] {
    byteprophet::StagedPlan::Get().Stage(at_iteration,
                                         {.settings = prophet::ParseSettings(settings_text),
                                          .times = {times, times + std::max(0, count)}});
  });
}

// Has the next OnIteration apply these settings, whatever plan is staged. Returns as above.
int byteprophet_change_settings(const char* settings_text, char* error, int error_bytes) {
  return Said(error, error_bytes, [&] {
    byteprophet::StagedPlan::Get().Change(prophet::ParseSettings(settings_text));
  });
}

// Has the next OnIteration plan the order with this bandwidth and these ready times, of which
// tensor and ready_ns are read, unless the policy has an order from a plan. Returns as above.
int byteprophet_stage_order(int64_t bandwidth_bps, const prophet::ReadyTime* times, int count,
                            char* error, int error_bytes) {
  return Said(error, error_bytes, [&] {
    byteprophet::StagedPlan::Get().Order(
        {.bandwidth_bps = bandwidth_bps, .times = {times, times + std::max(0, count)}});
  });
}

// The partition size in bytes that the policy has; 0: this process schedules nothing.
int64_t byteprophet_partition_bytes() { return byteprophet::StagedPlan::Get().partition_bytes(); }

// The partition size in bytes that would suit this worker's link; 0: no wish.
int64_t byteprophet_preferred_partition_bytes() { return byteprophet::PreferredPartitionBytes(); }

// What this worker would have all workers plan their order with: the bandwidth of its link, 0 if it
// has nothing to say, whether it has an order from a plan, and up to `capacity` ready times.
// Returns how many there are.
int byteprophet_learned(int64_t* bandwidth_bps, int* has_plan, prophet::ReadyTime* times,
                        int capacity) {
  const prophet::Learned learned = byteprophet::WhatItLearned();
  *bandwidth_bps = learned.bandwidth_bps;
  *has_plan = learned.has_plan ? 1 : 0;
  const auto count = static_cast<int>(learned.times.size());
  std::copy_n(learned.times.begin(), std::min(std::max(0, capacity), count), times);
  return count;
}

}  // extern "C"
