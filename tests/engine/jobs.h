// Jobs to simulate: owners of the arrays that a Job refers to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "prophet/engine/job.h"
#include "prophet/settings.h"
#include "tests/prophet/random.h"

namespace prophet::engine {

// At this rate a byte takes a nanosecond.
inline constexpr int64_t kBytePerNs = 8'000'000'000;

struct OwnedJob {
  std::vector<int64_t> forward_ns, ready_ns;
  std::vector<int64_t> first_partition{0};
  std::vector<int64_t> size_bytes;
  std::vector<int32_t> server;
  std::vector<int64_t> worker_bandwidth_bps{kBytePerNs};
  std::vector<int64_t> server_bandwidth_bps{0};
  Job rest;  // what has no arrays; its spans are not used

  // The next tensor in forward order, cut into partitions of these sizes, all on one server.
  OwnedJob& Add(int64_t forward, int64_t ready, const std::vector<int64_t>& sizes,
                int32_t on_server = 0);
  Job job() const;
};

PolicyMaker Makes(const std::string& policy, const Settings& settings = {});
Result Simulate(const OwnedJob& job, const std::string& policy, const Settings& settings = {});

// When iteration `iteration` of `worker` begins; its backward pass.
TimeNs Start(const OwnedJob& job, const Result& result, size_t worker, int64_t iteration);
TimeNs Backward(const OwnedJob& job, const Result& result, size_t worker, int64_t iteration);

// Small enough for times to coincide often; with links of all kinds.
OwnedJob RandomJob(Random& random);

}  // namespace prophet::engine
