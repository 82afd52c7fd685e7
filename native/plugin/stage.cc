#include "native/plugin/stage.h"

#include <algorithm>
#include <utility>

namespace byteprophet {

Stage::Stage(std::shared_ptr<Waiter> waiter, byteps::common::ReadyTable* ready)
    : waiter_(std::move(waiter)), ready_(ready) {}

void Stage::Add(Task task) {
  {
    std::lock_guard<std::mutex> lock(waiter_->mutex);
    tasks_.push_back(std::move(task));
    ++waiter_->tasks;
  }
  waiter_->changed.notify_one();
}

Task Stage::Take(bool may_wait) {
  std::unique_lock<std::mutex> lock(waiter_->mutex);
  Task task = TakeReady();
  const bool another_stage_has_tasks = waiter_->tasks > tasks_.size();
  if (task != nullptr || !may_wait || another_stage_has_tasks) return task;
  if (tasks_.empty()) {
    waiter_->changed.wait_for(lock, kIdleWait);
  } else {
    waiter_->changed.wait_for(lock, kUnreadyWait);
  }
  return TakeReady();
}

Task Stage::TakeReady() {
  for (auto it = tasks_.begin(); it != tasks_.end(); ++it) {
    if ((*it)->ready_event != nullptr && !(*it)->ready_event->Ready()) continue;
    if (ready_ != nullptr) {
      if (!ready_->IsKeyReady((*it)->key)) continue;
      ready_->ClearReadyCount((*it)->key);
    }
    return Remove(it);
  }
  return nullptr;
}

Task Stage::Remove(std::deque<Task>::iterator it) {
  Task task = std::move(*it);
  tasks_.erase(it);
  --waiter_->tasks;
  return task;
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
