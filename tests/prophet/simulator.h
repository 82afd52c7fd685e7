// A virtual clock that drives policies through a random job, the same for the same seed.
//
// The job: up to three workers, each with a policy and settings of its own, and up to four servers.
// Several iterations of tensors cut into partitions, some of no bytes, some tensors missing from an
// iteration; every worker releases them in an order and at times of its own, or all at one time.
// Priorities may change between iterations, some items are unranked. A server acknowledges a push
// when it arrives and answers the pulls of a key when every worker has pushed it; with several
// workers, or if the job has barriers, a worker needs the answers to go on: workers that waited for
// each other would never finish. Acknowledgements are late, out of order, repeated, some are lost
// for a long time first, and there are some of keys that nobody sent. OnIteration is called between
// iterations, at odd times, or never. At any time the job may be suspended: every policy is dropped
// with all it holds, and made again for the next iteration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "prophet/policy.h"
#include "prophet/settings.h"

namespace prophet {

using PolicyMaker =
    std::function<std::unique_ptr<Policy>(const std::string& name, const Settings& settings)>;

struct Outcome {
  std::string failure;  // empty: everything held
  bool deadlock = false;
  size_t sent = 0;  // items, of all workers
  size_t suspends = 0;
};

// `make` is MakePolicy, or something that is broken on purpose.
Outcome Simulate(const std::string& policy, uint64_t seed, const PolicyMaker& make);

}  // namespace prophet
