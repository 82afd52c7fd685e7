// The hand-over from the thread that posts collectives to the one that waits for them, defined
// again: the waiting thread sleeps while there is nothing to wait for. Shipped, it polls.
//
// BytePS has one NcclManager per process; its _nccl_mutex guards the pipeline as shipped, and the
// condition variable goes with it.
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "byteps/common/nccl_manager.h"
#include "native/plugin/stage.h"

namespace {

// Never destroyed: its waiter may outlive the statics.
std::condition_variable& group_enqueued = *new std::condition_variable;

}  // namespace

namespace byteps {
namespace common {

void NcclManager::EnqueueGroup(std::shared_ptr<NcclGroupEntry> group) {
  {
    std::lock_guard<std::mutex> lock(_nccl_mutex);
    _nccl_pipeline.push(std::move(group));
  }
  group_enqueued.notify_one();
}

std::shared_ptr<NcclGroupEntry> NcclManager::DequeueGroup() {
  std::unique_lock<std::mutex> lock(_nccl_mutex);
  if (_nccl_pipeline.empty()) group_enqueued.wait_for(lock, byteprophet::kIdleWait);
  if (_nccl_pipeline.empty()) return nullptr;
  auto group = std::move(_nccl_pipeline.front());
  _nccl_pipeline.pop();
  return group;
}

}  // namespace common
}  // namespace byteps
