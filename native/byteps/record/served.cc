#include "served.h"

#include "native/plugin/clock.h"

namespace byteprophet {

ServedRecorder& ServedRecorder::Get() {
  static auto* const recorder = new ServedRecorder;  // threads of ps-lite may outlive main
  return *recorder;
}

void ServedRecorder::Record(bool on) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (on) complete_.MakeRoom(kRingRows);
  rows_.clear();
  on_.store(on, std::memory_order_relaxed);
}

int64_t ServedRecorder::SumBegins() const {
  return on_.load(std::memory_order_relaxed) ? NowNs() : 0;
}

void ServedRecorder::Open(uint64_t key, uint32_t worker, uint64_t size_bytes) {
  const int64_t now = NowNs();
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Served>& rows = rows_[key];
  if (rows.size() <= worker) rows.resize(worker + 1);
  Served& row = rows[worker];
  if (row.arrived_ns != 0) complete_.CountLost();  // the worker never asked for that sum
  row = {.key = key,
         .size_bytes = size_bytes,
         .arrived_ns = now,
         .worker = worker,
         .round = row.round + 1};
}

void ServedRecorder::StampSum(uint64_t key, uint32_t worker, int64_t begin_ns) {
  const int64_t now = NowNs();
  std::lock_guard<std::mutex> lock(mutex_);
  if (Served* const row = Find(key, worker)) {
    row->sum_begin_ns = begin_ns;
    row->sum_end_ns = now;
  }
}

void ServedRecorder::StampAsked(uint64_t key, uint32_t worker) {
  const int64_t now = NowNs();
  std::lock_guard<std::mutex> lock(mutex_);
  if (Served* const row = Find(key, worker)) row->asked_ns = now;
}

void ServedRecorder::Close(uint64_t key, uint32_t worker) {
  std::lock_guard<std::mutex> lock(mutex_);
  Served* const row = Find(key, worker);
  if (row == nullptr) return;
  row->answered_ns = NowNs();  // under the mutex, so that rows are in this order
  complete_.Add(*row);
  row->arrived_ns = 0;
}

Served* ServedRecorder::Find(uint64_t key, uint32_t worker) {
  const auto rows = rows_.find(key);
  if (rows == rows_.end() || rows->second.size() <= worker) return nullptr;
  Served& row = rows->second[worker];
  return row.arrived_ns == 0 ? nullptr : &row;
}

int ServedRecorder::Take(Served* out, int capacity) {
  std::lock_guard<std::mutex> lock(mutex_);
  return complete_.Take(out, capacity);
}

uint64_t ServedRecorder::lost() {
  std::lock_guard<std::mutex> lock(mutex_);
  return complete_.lost();
}

}  // namespace byteprophet

using byteprophet::ServedRecorder;

void byteps_record_served(int on) { ServedRecorder::Get().Record(on != 0); }

int byteps_take_served(byteprophet::Served* out, int capacity) {
  return ServedRecorder::Get().Take(out, capacity);
}

uint64_t byteps_lost_served() { return ServedRecorder::Get().lost(); }

int byteps_server_rank() { return ServedRecorder::Get().rank(); }
