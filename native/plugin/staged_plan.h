// Counts iterations, and holds a plan until the one comes at which all workers adopt it; beside it
// settings that the worker itself changes, and the order on which workers agreed.
//
// Threads. Stage(), Change(), Order(), iteration(): any. Begin(): whoever begins an iteration.
// Reset(): the thread that makes BytePS' queues. One mutex guards everything; it is innermost. A
// plan is checked when it is staged, by a policy of its own, so that adopting it cannot fail.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "prophet/policy.h"
#include "prophet/settings.h"

namespace byteprophet {

struct Plan {
  prophet::Settings settings;  // those not named keep their values
  std::vector<prophet::ReadyTime> times;
};

// What all workers plan their order with, unless they have a plan's.
struct AgreedOrder {
  int64_t bandwidth_bps = 0;
  std::vector<prophet::ReadyTime> times;
};

class StagedPlan {
 public:
  // BytePS has one PUSH stage per process; never destroyed.
  static StagedPlan& Get();

  // A gate with this policy was made ("" for a process that pushes nothing): what was staged for
  // the one before is forgotten, iterations are counted on.
  void Reset(std::string policy, prophet::Settings settings);

  // For the iteration whose number, as iteration() counts, is `at_iteration`; takes the place of
  // what was staged before. Throws std::invalid_argument with one line if that iteration has begun
  // or the policy refuses the plan, and then changes nothing.
  void Stage(int64_t at_iteration, Plan plan);

  // For the next iteration, whatever plan is staged; the plan's settings hold where both name one.
  // Throws like Stage().
  void Change(const prophet::Settings& settings);

  // For the next iteration, whatever plan is staged. Throws std::invalid_argument with one line if
  // this process schedules nothing.
  void Order(AgreedOrder order);

  // Iterations begun so far in this process.
  int64_t iteration();

  // The policy's setting, without what is staged; 0 where nothing is scheduled.
  int64_t partition_bytes();

  // Begins an iteration: its number, and what to adopt now, if anything.
  struct Begun {
    int64_t iteration = 0;
    std::optional<AgreedOrder> order{};
    std::optional<Plan> plan{};
  };
  Begun Begin();

 private:
  // Throws if the policy would refuse `plan`, or what is changed and staged when it is adopted.
  // REQUIRES: mutex_ is held.
  void Check(const prophet::Settings& changes, const std::optional<Plan>& plan) const;

  std::mutex mutex_;
  // Guarded by mutex_.
  int64_t iteration_ = 0;
  std::string policy_;
  prophet::Settings settings_;
  prophet::Settings changes_;
  int64_t at_iteration_ = 0;
  std::optional<Plan> staged_;
  std::optional<AgreedOrder> order_;
};

}  // namespace byteprophet
