// The servers of a simulated job: they add up pushes and say which pulls are to be answered.
//
// Per partition (BytePS' key) and round: every worker pushes once, each push is copied or added by
// the key's thread, first come first served; when all are added, each worker that has asked for the
// sum is answered, one that asks later at once. A worker asks once per round and pushes the next
// only after it has the sum, so at most one sum waits for it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "prophet/engine/fabric.h"
#include "prophet/engine/job.h"

namespace prophet::engine {

class Servers {
 public:
  explicit Servers(const Job& job)
      : job_(job),
        workers_(job.worker_bandwidth_bps.size()),
        threads_(static_cast<size_t>(job.sum_threads)),
        thread_free_(job.server_bandwidth_bps.size() * threads_),
        summed_(job.size_bytes.size()),
        pulls_(job.size_bytes.size() * workers_, Pull::kNone) {}

  // A push has arrived: when it will have been added.
  TimeNs Add(size_t partition, TimeNs now) {
    if (job_.sum_bps == 0) return now;
    const auto server = static_cast<size_t>(job_.server[partition]);
    const auto rate = static_cast<uint64_t>(job_.sum_bps);
    const uint64_t work = static_cast<uint64_t>(job_.size_bytes[partition]) * kWorkPerByte;
    TimeNs& free = thread_free_[server * threads_ + partition % threads_];
    free = std::max(free, now) + static_cast<TimeNs>(work / rate + (work % rate != 0));
    return free;
  }

  // A push has been added: `answer(worker)` for all whom that completes.
  template <typename Answer>
  void OnSummed(size_t partition, const Answer& answer) {
    if (++summed_[partition] < workers_) return;
    summed_[partition] = 0;
    for (size_t worker = 0; worker < workers_; ++worker) {
      Pull& pull = pulls_[partition * workers_ + worker];
      if (pull == Pull::kAsked) {
        pull = Pull::kNone;
        answer(worker);
      } else {
        pull = Pull::kSumWaits;
      }
    }
  }

  // `worker` asks for the sum: whether it is there.
  bool OnRequest(size_t worker, size_t partition) {
    Pull& pull = pulls_[partition * workers_ + worker];
    const bool there = pull == Pull::kSumWaits;
    pull = there ? Pull::kNone : Pull::kAsked;
    return there;
  }

 private:
  enum class Pull : uint8_t { kNone, kAsked, kSumWaits };

  const Job& job_;
  const size_t workers_;
  const size_t threads_;  // per server
  std::vector<TimeNs> thread_free_;
  std::vector<uint32_t> summed_;  // pushes of this round, by partition
  std::vector<Pull> pulls_;       // by partition, then worker
};

}  // namespace prophet::engine
