#include "native/plugin/push_gate.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <utility>

#include "byteps/common/compressor/common.h"
#include "byteps/common/global.h"
#include "native/plugin/clock.h"
#include "native/plugin/transfers.h"

namespace byteprophet {
namespace {

std::atomic<uint64_t> scheduled{0};

// ps-lite gives each server an equal range of the key space and BytePS puts the server's range into
// the key.
uint32_t ServerOf(uint64_t key) {
  static const uint64_t servers = [] {
    const char* count = std::getenv("DMLC_NUM_SERVER");
    return static_cast<uint64_t>(std::max(1, count == nullptr ? 1 : std::atoi(count)));
  }();
  if (servers == 1) return 0;
  const uint64_t range = std::numeric_limits<uint64_t>::max() / servers;
  return static_cast<uint32_t>(byteps::common::BytePSGlobal::EncodeDefaultKey(key, 0).keys[0] /
                               range);
}

prophet::Item ItemOf(const Task& task) {
  const uint64_t bytes = task->compressed != nullptr ? task->compressed->size : task->len;
  return {
      .key = task->key, .server = ServerOf(task->key), .priority = task->priority, .bytes = bytes};
}

}  // namespace

PushGate::PushGate(std::unique_ptr<prophet::Policy> policy, byteps::common::ReadyTable* ready,
                   int64_t iteration)
    : policy_(std::move(policy)), ready_(ready), iteration_(static_cast<uint32_t>(iteration)) {}

void PushGate::Add(Task task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t key = task->key;
    waiting_[key].push_back(std::move(task));
    ++waiting_count_;
    OfferReady(key);
  }
  changed_.notify_one();
}

void PushGate::PeersChanged(const byteps::common::ReadyTable* table, uint64_t key) {
  if (table != ready_) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    OfferReady(key);
  }
  changed_.notify_one();
}

void PushGate::Acked(uint64_t key) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (in_flight_.erase(key) == 0) return;
    const prophet::TimeNs now = NowNs();
    TransferRecorder::Get().Acked(key, now);
    policy_->OnAcked({.key = key}, now);
    OfferReady(key);
  }
  changed_.notify_one();
}

void PushGate::OnIteration(const StagedPlan::Begun& begun) {
  std::lock_guard<std::mutex> lock(mutex_);
  iteration_ = static_cast<uint32_t>(begun.iteration);
  // First, so that the policy plans this iteration with them.
  if (begun.order) policy_->SetOrder(begun.order->bandwidth_bps, begun.order->times);
  if (begun.plan) {
    policy_->Reconfigure(begun.plan->settings);
    policy_->SetReadyTimes(begun.plan->times);
  }
  policy_->OnIteration(NowNs());
}

Task PushGate::Take() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (int attempt = 0;; ++attempt) {
    prophet::TimeNs ask_again_ns = 0;
    const prophet::TimeNs now = NowNs();
    Task task = TakeDecided(now, &ask_again_ns);
    if (task != nullptr || attempt > 0) return task;
    std::chrono::nanoseconds wait = kIdleWait;
    if (ask_again_ns > 0)
      wait = std::min(wait, std::chrono::nanoseconds(std::max<int64_t>(0, ask_again_ns - now)));
    changed_.wait_for(lock, wait);
  }
}

size_t PushGate::size() {
  std::lock_guard<std::mutex> lock(mutex_);
  return offered_.size() + waiting_count_;
}

std::optional<int64_t> PushGate::PreferredPartitionBytes() {
  std::lock_guard<std::mutex> lock(mutex_);
  return policy_->PreferredPartitionBytes();
}

std::optional<prophet::Learned> PushGate::WhatItLearned() {
  std::lock_guard<std::mutex> lock(mutex_);
  return policy_->WhatItLearned();
}

uint64_t PushGate::scheduled_partitions() { return scheduled.load(); }

void PushGate::OfferReady(uint64_t key) {
  const auto found = waiting_.find(key);
  if (found == waiting_.end() || offered_.count(key) > 0 || in_flight_.count(key) > 0 ||
      (ready_ != nullptr && !ready_->IsKeyReady(key))) {
    return;
  }
  Task task = std::move(found->second.front());
  found->second.pop_front();
  --waiting_count_;
  if (found->second.empty()) waiting_.erase(found);
  const prophet::Item item = ItemOf(task);
  offered_.emplace(key, std::move(task));
  const prophet::TimeNs now = NowNs();
  TransferRecorder::Get().Ready(item, iteration_, now);
  policy_->OnReady(item, now);
}

Task PushGate::TakeDecided(prophet::TimeNs now, prophet::TimeNs* ask_again_ns) {
  const prophet::Decision decision = policy_->Next(now);
  if (decision.kind == prophet::Decision::Kind::kWaitUntil) *ask_again_ns = decision.ask_again_ns;
  if (decision.kind != prophet::Decision::Kind::kSend) return nullptr;
  auto node = offered_.extract(decision.item.key);
  in_flight_.insert(decision.item.key);
  if (ready_ != nullptr) ready_->ClearReadyCount(decision.item.key);
  TransferRecorder::Get().Sent(decision.item.key, now);
  scheduled.fetch_add(1);
  return std::move(node.mapped());
}

}  // namespace byteprophet
