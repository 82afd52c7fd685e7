// Records what a server does with each partition: a worker's push arrives, is added up, the worker
// asks for the sum, and its answer is handed to the connection. One row per push.
//
// Threads. Arrived(), Asked(): the one that handles requests. Summed(): the engine's thread of the
// key. Answered(): either, or the one that sends what had to wait (answers.h). Take(): the
// recording thread, of Python. One mutex guards everything; it is innermost, nothing is called
// under it. While nothing is recorded each call is one relaxed load.
//
// Order. Arrived() is called before the engine gets the push, Summed() before the engine can
// answer, Answered() before the answer leaves, and a worker pushes a key again only when it has the
// sum. So there is one open row per key and worker, its times are in order, and it is complete
// before the worker has the answer.
//
// Memory is bounded: one open row per key and worker, and a ring of kRingRows that are complete.
// Rows stay where they are, and recording allocates nothing after the first iteration.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "native/row_ring.h"

namespace byteprophet {

// As SERVED of byteprophet/timeline/tables.py. Times: CLOCK_MONOTONIC.
struct Served {
  uint64_t key = 0;
  uint64_t size_bytes = 0;  // of the push, on the wire
  int64_t arrived_ns = 0;   // 0: the row is not open
  int64_t sum_begin_ns = 0;
  int64_t sum_end_ns = 0;
  int64_t asked_ns = 0;
  int64_t answered_ns = 0;
  uint32_t worker = 0;
  uint32_t round = 0;  // pushes of this key by this worker so far
};
static_assert(sizeof(Served) == 64);

class ServedRecorder {
 public:
  static constexpr size_t kRingRows = 1 << 16;

  // The one of this process; never destroyed.
  static ServedRecorder& Get();

  // Rounds count from where recording begins. What is complete when it ends may still be taken.
  void Record(bool on);
  // This server is in the job, and has this rank there.
  void Joined(int rank) { rank_.store(rank, std::memory_order_relaxed); }
  // -1: not yet.
  int rank() const { return rank_.load(std::memory_order_relaxed); }

  // When a sum begins; 0 while nothing is recorded.
  int64_t SumBegins() const;

  void Arrived(uint64_t key, uint32_t worker, uint64_t size_bytes) {
    if (on_.load(std::memory_order_relaxed)) Open(key, worker, size_bytes);
  }
  // The push was copied or added up, from `begin_ns` on.
  void Summed(uint64_t key, uint32_t worker, int64_t begin_ns) {
    if (begin_ns != 0) StampSum(key, worker, begin_ns);
  }
  void Asked(uint64_t key, uint32_t worker) {
    if (on_.load(std::memory_order_relaxed)) StampAsked(key, worker);
  }
  void Answered(uint64_t key, uint32_t worker) {
    if (on_.load(std::memory_order_relaxed)) Close(key, worker);
  }

  // Copies up to `capacity` complete rows to `out`, in the order of the answers, each once.
  int Take(Served* out, int capacity);
  // Rows that were recorded and lost.
  uint64_t lost();

 private:
  void Open(uint64_t key, uint32_t worker, uint64_t size_bytes);
  void StampSum(uint64_t key, uint32_t worker, int64_t begin_ns);
  void StampAsked(uint64_t key, uint32_t worker);
  void Close(uint64_t key, uint32_t worker);
  // The open row, or null. REQUIRES: mutex_ is held.
  Served* Find(uint64_t key, uint32_t worker);

  std::atomic<bool> on_{false};
  std::atomic<int> rank_{-1};
  std::mutex mutex_;
  // Guarded by mutex_.
  std::unordered_map<uint64_t, std::vector<Served>> rows_;  // by key, then worker
  RowRing<Served> complete_;
};

}  // namespace byteprophet

// For Python, by names that BytePS' libraries export; any thread may call them.
extern "C" {

// Records what is served from now on (1), or nothing (0).
void byteps_record_served(int on);
// Copies up to `capacity` complete rows, each once, and returns how many.
int byteps_take_served(byteprophet::Served* out, int capacity);
// Rows that were recorded and lost, as nobody took them in time.
uint64_t byteps_lost_served();
// This server's rank in the job; -1 until it has joined.
int byteps_server_rank();
}
