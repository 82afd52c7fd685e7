#include "native/plugin/staged_plan.h"

#include <stdexcept>
#include <utility>

#include "prophet/registry.h"

namespace byteprophet {

StagedPlan& StagedPlan::Get() {
  static StagedPlan& staged = *new StagedPlan;
  return staged;
}

void StagedPlan::Reset(std::string policy, prophet::Settings settings) {
  std::lock_guard<std::mutex> lock(mutex_);
  policy_ = std::move(policy);
  settings_ = std::move(settings);
  staged_.reset();
}

void StagedPlan::Stage(int64_t at_iteration, Plan plan) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (policy_.empty()) throw std::invalid_argument("this process schedules nothing");
  if (at_iteration <= iteration_) {
    throw std::invalid_argument("a plan for iteration " + std::to_string(at_iteration) +
                                " is too late: " + std::to_string(iteration_) + " has begun");
  }
  prophet::MakePolicy(policy_, settings_)->Reconfigure(plan.settings);
  prophet::MakePolicy(policy_, settings_)->SetReadyTimes(plan.times);
  at_iteration_ = at_iteration;
  staged_ = std::move(plan);
}

int64_t StagedPlan::iteration() {
  std::lock_guard<std::mutex> lock(mutex_);
  return iteration_;
}

StagedPlan::Begun StagedPlan::Begin() {
  std::lock_guard<std::mutex> lock(mutex_);
  Begun begun{.iteration = ++iteration_, .plan = std::nullopt};
  if (staged_ && at_iteration_ <= iteration_) {
    for (const auto& [name, value] : staged_->settings) settings_[name] = value;
    begun.plan = std::move(staged_);
    staged_.reset();
  }
  return begun;
}

}  // namespace byteprophet
