#include "native/plugin/staged_plan.h"

#include <stdexcept>
#include <utility>

#include "prophet/registry.h"

namespace byteprophet {
namespace {

constexpr const char* kNothing = "this process schedules nothing";

}  // namespace

StagedPlan& StagedPlan::Get() {
  static StagedPlan& staged = *new StagedPlan;
  return staged;
}

void StagedPlan::Reset(std::string policy, prophet::Settings settings) {
  std::lock_guard<std::mutex> lock(mutex_);
  policy_ = std::move(policy);
  settings_ = std::move(settings);
  changes_.clear();
  staged_.reset();
  order_.reset();
}

void StagedPlan::Stage(int64_t at_iteration, Plan plan) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (policy_.empty()) throw std::invalid_argument(kNothing);
  if (at_iteration <= iteration_) {
    throw std::invalid_argument("a plan for iteration " + std::to_string(at_iteration) +
                                " is too late: " + std::to_string(iteration_) + " has begun");
  }
  std::optional<Plan> wanted(std::move(plan));
  Check(changes_, wanted);
  at_iteration_ = at_iteration;
  staged_ = std::move(wanted);
}

void StagedPlan::Change(const prophet::Settings& settings) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (policy_.empty()) throw std::invalid_argument(kNothing);
  prophet::Settings changes = prophet::Merged(changes_, settings);
  Check(changes, staged_);
  changes_ = std::move(changes);
}

void StagedPlan::Order(AgreedOrder order) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (policy_.empty()) throw std::invalid_argument(kNothing);
  order_ = std::move(order);
}

void StagedPlan::Check(const prophet::Settings& changes, const std::optional<Plan>& plan) const {
  const auto policy = prophet::MakePolicy(policy_, settings_);
  policy->Reconfigure(changes);
  if (!plan) return;
  policy->Reconfigure(plan->settings);
  policy->SetReadyTimes(plan->times);
}

int64_t StagedPlan::iteration() {
  std::lock_guard<std::mutex> lock(mutex_);
  return iteration_;
}

int64_t StagedPlan::partition_bytes() {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = settings_.find("partition_bytes");
  return found == settings_.end() ? 0 : found->second;
}

StagedPlan::Begun StagedPlan::Begin() {
  std::lock_guard<std::mutex> lock(mutex_);
  Begun begun{.iteration = ++iteration_, .order = std::move(order_), .plan = std::nullopt};
  order_.reset();
  const bool due = staged_ && at_iteration_ <= iteration_;
  if (!due && changes_.empty()) return begun;
  begun.plan = due ? std::move(*staged_) : Plan{};
  if (due) staged_.reset();
  begun.plan->settings = prophet::Merged(changes_, begun.plan->settings);
  changes_.clear();
  settings_ = prophet::Merged(settings_, begun.plan->settings);
  return begun;
}

}  // namespace byteprophet
