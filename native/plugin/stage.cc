#include "native/plugin/stage.h"

#include <algorithm>
#include <utility>

namespace byteprophet {
namespace {

bool WaitsForItsEvent(const Task& task) {
  return task->ready_event != nullptr && !task->ready_event->Ready();
}

bool MoreUrgent(const Task& a, const Task& b) {
  return a->priority != b->priority ? a->priority > b->priority : a->key < b->key;
}

}  // namespace

Stage::Stage(std::shared_ptr<Waiter> waiter, byteps::common::ReadyTable* ready,
             std::optional<int64_t> credit_bytes)
    : waiter_(std::move(waiter)),
      ready_(ready),
      whole_credit_bytes_(credit_bytes),
      credit_bytes_(credit_bytes) {
  std::lock_guard<std::mutex> lock(waiter_->mutex);
  waiter_->stages.push_back(this);
}

void Stage::Add(Task task) {
  {
    std::lock_guard<std::mutex> lock(waiter_->mutex);
    const auto place = credit_bytes_
                           ? std::upper_bound(tasks_.begin(), tasks_.end(), task, MoreUrgent)
                           : tasks_.end();
    tasks_.insert(place, std::move(task));
  }
  waiter_->changed.notify_one();
}

void Stage::PeersChanged(const byteps::common::ReadyTable* table) {
  if (table != ready_) return;
  // Whoever found the old count is asleep once the lock can be had.
  { std::lock_guard<std::mutex> lock(waiter_->mutex); }
  waiter_->changed.notify_one();
}

Task Stage::Take(bool may_wait) {
  std::unique_lock<std::mutex> lock(waiter_->mutex);
  Task task = TakeReady();
  if (task != nullptr || !may_wait || AnotherIsReady()) return task;
  if (AnyWaitsForAnEvent()) {
    waiter_->changed.wait_for(lock, kUnreadyWait);
  } else {
    waiter_->changed.wait_for(lock, kIdleWait);
  }
  return TakeReady();
}

std::deque<Task>::iterator Stage::FirstReady() {
  return std::find_if(tasks_.begin(), tasks_.end(), [this](const Task& task) {
    return CreditSuffices(task) && !WaitsForItsEvent(task) &&
           (ready_ == nullptr || ready_->IsKeyReady(task->key));
  });
}

Task Stage::TakeReady() {
  const auto it = FirstReady();
  if (it == tasks_.end()) return nullptr;
  if (ready_ != nullptr) ready_->ClearReadyCount((*it)->key);
  if (credit_bytes_) *credit_bytes_ -= (*it)->len;
  return Remove(it);
}

Task Stage::Remove(std::deque<Task>::iterator it) {
  Task task = std::move(*it);
  tasks_.erase(it);
  return task;
}

bool Stage::AnotherIsReady() {
  return std::any_of(waiter_->stages.begin(), waiter_->stages.end(), [this](Stage* stage) {
    return stage != this && stage->FirstReady() != stage->tasks_.end();
  });
}

bool Stage::AnyWaitsForAnEvent() {
  return std::any_of(waiter_->stages.begin(), waiter_->stages.end(), [](Stage* stage) {
    return std::any_of(stage->tasks_.begin(), stage->tasks_.end(), WaitsForItsEvent);
  });
}

bool Stage::CreditSuffices(const Task& task) const {
  return !credit_bytes_ || task->len <= *credit_bytes_ || credit_bytes_ == whole_credit_bytes_;
}

void Stage::Finished(int64_t size_bytes) {
  {
    std::lock_guard<std::mutex> lock(waiter_->mutex);
    if (!credit_bytes_) return;
    *credit_bytes_ += size_bytes;
  }
  waiter_->changed.notify_one();
}

Task Stage::TakeKey(uint64_t key) {
  std::lock_guard<std::mutex> lock(waiter_->mutex);
  const auto it = std::find_if(tasks_.begin(), tasks_.end(),
                               [key](const Task& task) { return task->key == key; });
  return it == tasks_.end() ? nullptr : Remove(it);
}

size_t Stage::size() {
  std::lock_guard<std::mutex> lock(waiter_->mutex);
  return tasks_.size();
}

}  // namespace byteprophet
