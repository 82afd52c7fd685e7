#include "messages.h"

#include "native/plugin/clock.h"

namespace byteprophet {

MessageRecorder& MessageRecorder::Get() {
  static auto* const recorder = new MessageRecorder;  // ZeroMQ's threads may outlive main
  return *recorder;
}

void MessageRecorder::Record(bool on) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (on) rows_.MakeRoom(kRingRows);
  on_.store(on, std::memory_order_relaxed);
}

int64_t MessageRecorder::Begins() const {
  return on_.load(std::memory_order_relaxed) ? NowNs() : 0;
}

void MessageRecorder::Ended(Message row) {
  std::lock_guard<std::mutex> lock(mutex_);
  row.end_ns = NowNs();  // under the mutex, so that rows are in this order
  rows_.Add(row);
}

int MessageRecorder::Take(Message* out, int capacity) {
  std::lock_guard<std::mutex> lock(mutex_);
  return rows_.Take(out, capacity);
}

uint64_t MessageRecorder::lost() {
  std::lock_guard<std::mutex> lock(mutex_);
  return rows_.lost();
}

}  // namespace byteprophet

using byteprophet::MessageRecorder;

void byteps_record_messages(int on) { MessageRecorder::Get().Record(on != 0); }

int byteps_take_messages(byteprophet::Message* out, int capacity) {
  return MessageRecorder::Get().Take(out, capacity);
}

uint64_t byteps_lost_messages() { return MessageRecorder::Get().lost(); }
