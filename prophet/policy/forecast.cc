#include "prophet/policy/forecast.h"

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
// The second observation takes the place of the first, whose iteration may have taken far longer.
constexpr int kFirstObservations = 2;

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
    order_changed_ = true;
    tensor.ready_ns = time.ready_ns;
    tensor.spread_ns = time.spread_ns;
    tensor.observations = kSettledObservations;
    tensor.absences = 0;
  }
  Rebuild();
}

void ReadyForecast::OnReady(uint64_t key, int32_t priority, TimeNs now) {
  Tensor& tensor = tensors_[TensorOf(key)];
  std::vector<uint64_t>& seen = tensor.partition_iterations;
  const size_t partition = PartitionOf(key);
  if (partition >= seen.size()) seen.resize(partition + 1);
  // Forgets no tensor that has come in the iteration that ends.
  if (seen[partition] == iteration_) OnIteration();
  seen[partition] = iteration_;
  if (!started_) started_ = now;

  if (tensor.last_iteration == iteration_) return;  // not its first partition
  if (tensor.priority != priority || tensor.position == kNoPosition) order_changed_ = true;
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
  const auto forgotten = [](const auto& entry) { return entry.second.absences > kForgetAfter; };
  if (std::erase_if(tensors_, forgotten) > 0) order_changed_ = true;
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

std::vector<ReadyTime> ReadyForecast::Times() const {
  std::vector<ReadyTime> times;
  times.reserve(tensors_.size());
  for (const auto& [id, tensor] : tensors_) {
    if (tensor.last_iteration != iteration_) continue;
    times.push_back({.tensor = id,
                     .priority = tensor.priority,
                     .ready_ns = std::min(tensor.ready_ns, tensor.last_ns),
                     .spread_ns = tensor.spread_ns});
  }
  return times;
}

void ReadyForecast::Learn(Tensor& tensor, TimeNs offset_ns) {
  tensor.observations = std::min(tensor.observations + 1, kSettledObservations);
  tensor.last_ns = offset_ns;
  const TimeNs error_ns = offset_ns - tensor.ready_ns;
  if (tensor.observations <= kFirstObservations) {
    tensor.ready_ns = offset_ns;
    return;
  }
  tensor.ready_ns += error_ns / tensor.observations;
  tensor.spread_ns += (std::abs(error_ns) - tensor.spread_ns) / tensor.observations;
}

void ReadyForecast::Rebuild() {
  if (order_changed_) {
    order_changed_ = false;
    order_.clear();
    for (auto& [id, tensor] : tensors_) order_.push_back(&tensor);
    std::sort(order_.begin(), order_.end(),
              [](const Tensor* a, const Tensor* b) { return a->priority > b->priority; });
    priorities_.clear();
    for (Tensor* tensor : order_) {
      tensor->position = priorities_.size();
      priorities_.push_back(tensor->priority);
    }
    expected_ = SegmentTree<Earliest>(order_.size());
  }
  for (const Tensor* tensor : order_) {
    const bool came = tensor->last_iteration == iteration_;
    expected_.Set(tensor->position,
                  came ? kNever : std::max<TimeNs>(0, tensor->ready_ns - tensor->spread_ns));
  }
}

}  // namespace prophet
