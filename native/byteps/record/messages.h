// Records ps-lite's messages of gradients, at workers and servers: when one was handed to ZeroMQ
// and when the kernel had taken the last of it, when one was received and when it was unpacked.
// What lies between a send and its receipt is the wire; transfers and what servers serve
// (native/plugin/transfers.h, served.h) have what BytePS did before and after.
//
// Threads. Begins(): whoever sends, and the threads that receive. Ended(): of what is sent, the
// same or ZeroMQ's own when it is done with the last part; of what is received, the thread that
// unpacks. Take(): the observer's. One mutex guards the rows, for as long as it takes to write one
// down or to copy some thousand; it is innermost, nothing is called under it. While nothing is
// recorded each message costs a relaxed load per call.
//
// A message that began while it was recorded may end after Record(false), and its row is kept:
// whoever records next takes what is there, and drops it, before Record(true).
//
// Memory is bounded: a ring of kRingRows, and a row with each message that ZeroMQ has.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "native/row_ring.h"

namespace byteprophet {

// As MESSAGE of byteprophet/timeline/tables.py. Times: CLOCK_MONOTONIC.
struct Message {
  enum What : uint8_t { kPush, kAcknowledgement, kRequest, kAnswer };
  static constexpr uint8_t kSend = 7, kReceive = 8;  // Kind of tables.py

  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  uint64_t key = 0;
  uint64_t size_bytes = 0;  // of the payload; 0: there is none
  uint32_t request = 0;     // the worker's number of the push or pull, the same in all its messages
  uint32_t peer = 0;        // at a worker the server, at a server the worker: its rank
  What what = kPush;
  uint8_t kind = kSend;
  uint8_t reserved[6] = {};
};
static_assert(sizeof(Message) == 48);

class MessageRecorder {
 public:
  static constexpr size_t kRingRows = 1 << 16;

  // The one of this process; never destroyed.
  static MessageRecorder& Get();

  void Record(bool on);

  // The time, at which a message is handed over or received; 0 while nothing is recorded.
  int64_t Begins() const;
  // Completes the row and keeps it: it ends now.
  void Ended(Message row);

  // Copies up to `capacity` rows to `out`, in the order in which they ended, each once.
  int Take(Message* out, int capacity);
  // Rows that were recorded and lost.
  uint64_t lost();

 private:
  std::atomic<bool> on_{false};
  std::mutex mutex_;
  RowRing<Message> rows_;  // guarded by mutex_
};

}  // namespace byteprophet

// For Python, by names that BytePS' libraries export; any thread may call them.
extern "C" {

// Records messages from now on (1), or none (0).
void byteps_record_messages(int on);
// Copies up to `capacity` rows, each once, and returns how many.
int byteps_take_messages(byteprophet::Message* out, int capacity);
// Rows that were recorded and lost, as nobody took them in time.
uint64_t byteps_lost_messages();
}
