// Records the way of every partition: offered to the policy, taken by the PUSH loop, acknowledged
// by the server, pulled back. For whoever learns from it: profiler, network monitor, controller.
//
// Threads. Ready(), Sent(), Acked(): under the push gate's mutex, on the threads that call the
// gate. Pulled(): the thread that moves a task past PULL (ps-lite's customer thread). Take(): the
// observer. One mutex guards everything; it is innermost, nothing is called under it. While nothing
// is recorded each call is one relaxed load.
//
// Rounds are known while nothing was missed since the queues began: from then on every iteration
// was recorded.
//
// Memory is bounded: one open record per key, and a ring of kRingTransfers that are complete.
//
// BytePS moves a task on once for the acknowledgement and once for the answer to the pull,
// whichever comes first, and says not which: `acked` is the first, from which the server is known
// to have the push, `pulled` the second, after which the task has left PULL. They differ from their
// names only where an answer overtakes its acknowledgement.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "native/row_ring.h"
#include "prophet/item.h"

namespace byteprophet {

// As TRANSFER of byteprophet/timeline/tables.py. Times: CLOCK_MONOTONIC.
struct Transfer {
  uint64_t key = 0;
  uint64_t size_bytes = 0;  // on the wire, one direction
  int64_t ready_ns = 0;     // 0: the record is not open
  int64_t sent_ns = 0;
  int64_t acked_ns = 0;
  int64_t pulled_ns = 0;
  uint32_t server = 0;
  uint32_t iteration = 0;  // OnIteration calls before it became ready
  int32_t priority = 0;
  uint32_t round = 0;  // this key's pushes so far, as servers count them; 0: not known
};
static_assert(sizeof(Transfer) == 64);

class TransferRecorder {
 public:
  static constexpr size_t kRingTransfers = 1 << 16;

  // BytePS has one PUSH stage per process, and so one recorder; never destroyed.
  static TransferRecorder& Get();

  // 0: nothing; n: the transfers of every n-th iteration. What is in flight when recording ends is
  // forgotten; what is complete may still be taken.
  void Record(uint32_t every);
  // The queues are gone, and with them all that was in flight.
  void Forget();

  void Ready(const prophet::Item& item, uint32_t iteration, prophet::TimeNs now) {
    const uint32_t every = every_.load(std::memory_order_relaxed);
    if (every != 0 && iteration % every == 0) return Open(item, iteration, now);
    if (!missed_.load(std::memory_order_relaxed)) missed_.store(true, std::memory_order_relaxed);
  }
  void Sent(uint64_t key, prophet::TimeNs now) {
    if (every_.load(std::memory_order_relaxed) != 0) Stamp(key, &Transfer::sent_ns, now);
  }
  void Acked(uint64_t key, prophet::TimeNs now) {
    if (every_.load(std::memory_order_relaxed) != 0) Stamp(key, &Transfer::acked_ns, now);
  }
  void Pulled(uint64_t key) {
    if (every_.load(std::memory_order_relaxed) != 0) Close(key);
  }

  // Copies up to `capacity` complete transfers to `out`, in order of completion, each once.
  int Take(Transfer* out, int capacity);
  // Transfers that were recorded and lost.
  uint64_t lost();

 private:
  void Open(const prophet::Item& item, uint32_t iteration, prophet::TimeNs now);
  void Stamp(uint64_t key, int64_t Transfer::*time, prophet::TimeNs now);
  void Close(uint64_t key);

  std::atomic<uint32_t> every_{0};
  // Whether a transfer was ready since the queues began that is not counted.
  std::atomic<bool> missed_{false};
  std::mutex mutex_;
  // Guarded by mutex_. Rows stay, so that recording allocates nothing after the first iteration.
  std::unordered_map<uint64_t, Transfer> open_;
  RowRing<Transfer> complete_;
};

}  // namespace byteprophet
