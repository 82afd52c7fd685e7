#include "prophet/forecast.h"

#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

namespace prophet {
namespace {

// Averages weigh the newest observation by one over the number of observations, and by no less
// than one over this.
constexpr int kSettledObservations = 4;

}  // namespace

void ReadyForecast::Set(std::span<const ReadyTime> times) {
  for (const ReadyTime& time : times) {
    if (time.ready_ns < 0 || time.spread_ns < 0 || time.priority >= 0) {
      throw std::invalid_argument("ready time of tensor " + std::to_string(time.tensor) +
                                  ": time and spread must not be negative, priority must be");
    }
  }
  for (const ReadyTime& time : times) {
    Tensor& tensor = tensors_[time.tensor];
    tensor.priority = time.priority;
    tensor.ready_ns = time.ready_ns;
    tensor.spread_ns = time.spread_ns;
    tensor.observations = kSettledObservations;
    tensor.absences = 0;
  }
  Rebuild();
}

void ReadyForecast::OnReady(uint64_t key, int32_t priority, TimeNs now) {
  uint64_t& seen = key_iteration_[key];
  if (seen == iteration_) OnIteration();
  seen = iteration_;
  if (!started_) started_ = now;

  Tensor& tensor = tensors_[TensorOf(key)];
  if (tensor.last_iteration == iteration_) return;  // not its first partition
  tensor.last_iteration = iteration_;
  tensor.absences = 0;
  tensor.priority = priority;
  Learn(tensor, now - *started_);
  if (tensor.position != kNoPosition) expected_.Set(tensor.position, kNever);
}

void ReadyForecast::OnIteration() {
  if (!started_) return;
  for (auto& [id, tensor] : tensors_) {
    if (tensor.last_iteration != iteration_) ++tensor.absences;
  }
  std::erase_if(tensors_, [](const auto& entry) { return entry.second.absences > kForgetAfter; });
  ++iteration_;
  started_.reset();
  Rebuild();
}

std::optional<TimeNs> ReadyForecast::NextAbove(int32_t priority) const {
  if (!started_) return std::nullopt;
  const auto end =
      std::lower_bound(priorities_.begin(), priorities_.end(), priority, std::greater<>());
  const TimeNs offset = expected_.Prefix(static_cast<size_t>(end - priorities_.begin()));
  if (offset == kNever) return std::nullopt;
  return *started_ + offset;
}

void ReadyForecast::Learn(Tensor& tensor, TimeNs offset_ns) {
  tensor.observations = std::min(tensor.observations + 1, kSettledObservations);
  const TimeNs error_ns = offset_ns - tensor.ready_ns;
  if (tensor.observations == 1) {
    tensor.ready_ns = offset_ns;
    return;
  }
  tensor.ready_ns += error_ns / tensor.observations;
  tensor.spread_ns += (std::abs(error_ns) - tensor.spread_ns) / tensor.observations;
}

void ReadyForecast::Rebuild() {
  std::vector<std::pair<int32_t, Tensor*>> order;
  order.reserve(tensors_.size());
  for (auto& [id, tensor] : tensors_) order.emplace_back(tensor.priority, &tensor);
  std::sort(order.begin(), order.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  priorities_.clear();
  expected_ = SegmentTree<Earliest>(order.size());
  for (const auto& [priority, tensor] : order) {
    tensor->position = priorities_.size();
    priorities_.push_back(priority);
    if (tensor->last_iteration == iteration_) continue;
    expected_.Set(tensor->position, std::max<TimeNs>(0, tensor->ready_ns - tensor->spread_ns));
  }
}

}  // namespace prophet
