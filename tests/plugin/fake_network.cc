#include "fake_network.h"

#include <algorithm>
#include <utility>

#include "byteps/common/compressor/common.h"
#include "byteps/common/global.h"

namespace byteps {
namespace common {
void FinishOrProceed(std::shared_ptr<TensorTableEntry> task);  // of core_loops.cc
}  // namespace common
}  // namespace byteps

namespace byteprophet {
namespace {

using byteps::common::BytePSGlobal;

template <typename Handle>
void Loop(byteps::common::QueueType type, const Handle& handle) {
  while (!BytePSGlobal::ShouldShutdown()) {
    const Task task = BytePSGlobal::GetScheduledQueue(type)->getTask();
    if (task != nullptr) handle(task);
  }
  BytePSGlobal::ReportThreadFinish();
}

uint8_t* Staging(const Task& task) { return static_cast<uint8_t*>(task->cpubuff) + task->offset; }

}  // namespace

FakeNetwork& FakeNetwork::Get() {
  static FakeNetwork network;
  return network;
}

void FakeNetwork::PushLoop() {
  Loop(byteps::common::PUSH, [](const Task& task) { Get().Push(task); });
}

void FakeNetwork::PullLoop() {
  Loop(byteps::common::PULL, [](const Task& task) { Get().Pull(task); });
}

void FakeNetwork::Start(uint64_t seed) {
  random_.seed(seed);
  stopping_ = false;
  customer_ = std::thread([this] { Run(); });
}

void FakeNetwork::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Check(due_.empty(), "stopped with deliveries due");
    stopping_ = true;
  }
  changed_.notify_one();
  customer_.join();
  keys_.clear();
}

FakeNetwork::Clock::duration FakeNetwork::RandomDelay() {
  const auto longest_us = random_() % 50 == 0 ? 5000u : 300u;
  return std::chrono::microseconds(random_() % longest_us);
}

// As BytePS' own PUSH loop does it.
void FakeNetwork::Push(const Task& task) {
  const uint8_t* data = Staging(task);
  size_t size = task->len;
  if (task->compressed != nullptr) {
    data = reinterpret_cast<const uint8_t*>(task->compressed->data);
    size = task->compressed->size;
    task->compressed = nullptr;
  }
  BytePSGlobal::EncodeDefaultKey(task->key, size);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Key& key = keys_[task->key];
    Check(!key.unacknowledged, "two pushes of one key in flight");
    Check(task->version == key.next_version, "pushes of one key out of order");
    ++key.next_version;
    key.unacknowledged = true;
    key.bytes[task->version].assign(data, data + size);
    key.arrives = Clock::now() + RandomDelay();
    due_.emplace(key.arrives + RandomDelay(), Delivery{task, false});
    ++pushes_;
  }
  changed_.notify_one();
}

void FakeNetwork::Pull(const Task& task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const Key& key = keys_[task->key];
    Check(key.bytes.contains(task->version), "pulled before it was pushed, or twice");
    due_.emplace(std::max(Clock::now(), key.arrives) + RandomDelay(), Delivery{task, true});
  }
  changed_.notify_one();
}

void FakeNetwork::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    if (due_.empty()) {
      changed_.wait(lock, [this] { return stopping_ || !due_.empty(); });
      continue;
    }
    const auto next = due_.begin()->first;
    if (next > Clock::now()) {
      changed_.wait_until(lock, next);
      continue;
    }
    // All that is due, in any order.
    std::vector<Delivery> batch;
    const auto end = due_.upper_bound(Clock::now());
    for (auto it = due_.begin(); it != end; it = due_.erase(it)) batch.push_back(it->second);
    std::shuffle(batch.begin(), batch.end(), random_);
    for (const Delivery& delivery : batch) {
      Key& key = keys_[delivery.task->key];
      std::vector<uint8_t> bytes;
      if (delivery.answer) {
        bytes = std::move(key.bytes.extract(delivery.task->version).mapped());
      }
      key.unacknowledged = key.unacknowledged && delivery.task->version + 1 != key.next_version;
      lock.unlock();
      std::transform(bytes.begin(), bytes.end(), Staging(delivery.task),
                     [](uint8_t byte) { return static_cast<uint8_t>(2 * byte + 1); });
      byteps::common::FinishOrProceed(delivery.task);
      lock.lock();
    }
  }
}

void FakeNetwork::Check(bool holds, const std::string& what) {
  if (!holds && failure_.empty()) failure_ = what;
}

std::string FakeNetwork::failure() {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

size_t FakeNetwork::pushes() {
  std::lock_guard<std::mutex> lock(mutex_);
  return pushes_;
}

std::string FakeNetwork::outstanding() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::string text;
  for (const auto& [time, delivery] : due_) {
    text += (delivery.answer ? " answer of " : " acknowledgement of ") + delivery.task->tensor_name;
  }
  for (const auto& [id, key] : keys_) {
    if (key.unacknowledged) text += " push of key " + std::to_string(id);
  }
  return text;
}

}  // namespace byteprophet
