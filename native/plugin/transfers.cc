#include "native/plugin/transfers.h"

#include "native/plugin/clock.h"

namespace byteprophet {
namespace {

// No longer in flight; its round stays.
void Shut(Transfer& transfer) { transfer.ready_ns = transfer.acked_ns = 0; }

}  // namespace

TransferRecorder& TransferRecorder::Get() {
  static TransferRecorder& recorder = *new TransferRecorder;
  return recorder;
}

void TransferRecorder::Record(uint32_t every) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (every > 0) {
    complete_.MakeRoom(kRingTransfers);
  } else {
    for (auto& [key, transfer] : open_) Shut(transfer);
  }
  every_.store(every, std::memory_order_relaxed);
}

void TransferRecorder::Forget() {
  std::lock_guard<std::mutex> lock(mutex_);
  open_.clear();
  missed_.store(false, std::memory_order_relaxed);
}

void TransferRecorder::Open(const prophet::Item& item, uint32_t iteration, prophet::TimeNs now) {
  std::lock_guard<std::mutex> lock(mutex_);
  Transfer& transfer = open_[item.key];
  if (transfer.acked_ns != 0) complete_.CountLost();  // its task went on without passing PULL
  const bool counted = !missed_.load(std::memory_order_relaxed);
  transfer = {.key = item.key,
              .size_bytes = item.bytes,
              .ready_ns = now,
              .server = item.server,
              .iteration = iteration,
              .priority = item.priority,
              .round = counted ? transfer.round + 1 : 0};
}

void TransferRecorder::Stamp(uint64_t key, int64_t Transfer::*time, prophet::TimeNs now) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = open_.find(key);
  if (found != open_.end() && found->second.ready_ns != 0) found->second.*time = now;
}

void TransferRecorder::Close(uint64_t key) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = open_.find(key);
  // Without an acknowledgement it is not this push that was answered, but one not recorded.
  if (found == open_.end() || found->second.acked_ns == 0) return;
  found->second.pulled_ns = NowNs();
  complete_.Add(found->second);
  Shut(found->second);
}

int TransferRecorder::Take(Transfer* out, int capacity) {
  std::lock_guard<std::mutex> lock(mutex_);
  return complete_.Take(out, capacity);
}

uint64_t TransferRecorder::lost() {
  std::lock_guard<std::mutex> lock(mutex_);
  return complete_.lost();
}

}  // namespace byteprophet
