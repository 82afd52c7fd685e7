// Workers whose links are alike are simulated as one.
//
// All workers of a job compute alike, under the same policy. Those whose links have the same rate
// do the same at the same times, so one can stand for all of them. Where they meet, on the servers'
// links, it takes as much as all of them together. A cluster of equal hosts then takes as long to
// simulate as one worker.
//
// Exact to the nanosecond, also where things happen at one time. A sum is complete with the push of
// the last worker. So the last of those that are alike stands for them, and the order among those
// that are left is theirs. Not folded are jobs whose servers take time to add up: their threads
// take pushes that come at one time in turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "prophet/engine/job.h"

namespace prophet::engine {

class Fold {
 public:
  explicit Fold(const Job& job);

  // The job with one worker for all that are alike. It refers to this object.
  const Job& job() const { return job_; }
  // Of each of its workers, how many workers it stands for.
  const std::vector<int64_t>& counts() const { return counts_; }
  // The result of the whole job, from that of `job()`.
  Result Unfold(Result folded) const;

 private:
  Job job_;
  std::vector<int64_t> worker_bps_;
  std::vector<int64_t> counts_;
  std::vector<size_t> stands_for_;  // by worker of the whole job: its number in `job()`
};

}  // namespace prophet::engine
