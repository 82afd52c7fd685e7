#include "prophet/engine/worker.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace prophet::engine {

Plan::Plan(const Job& of)
    : job(of), tensor(of.size_bytes.size()), by_readiness(of.ready_ns.size()) {
  for (size_t number = 0; number < of.ready_ns.size(); ++number) {
    std::fill(tensor.begin() + of.first_partition[number],
              tensor.begin() + of.first_partition[number + 1], static_cast<uint32_t>(number));
  }
  std::iota(by_readiness.begin(), by_readiness.end(), uint32_t{0});
  std::sort(by_readiness.begin(), by_readiness.end(), [&](uint32_t a, uint32_t b) {
    return of.ready_ns[a] != of.ready_ns[b] ? of.ready_ns[a] < of.ready_ns[b] : a > b;
  });
}

Worker::Worker(const Plan& plan, size_t number, std::unique_ptr<Policy> policy, Events& events,
               TimeNs* starts, TimeNs* backward_starts)
    : plan_(plan),
      job_(plan.job),
      number_(number),
      policy_(std::move(policy)),
      events_(events),
      starts_(starts),
      backward_starts_(backward_starts),
      missing_of_(job_.forward_ns.size()),
      transfers_(job_.record ? job_.size_bytes.size() : 0) {
  if (job_.record) {
    record_.reserve(job_.size_bytes.size() * static_cast<size_t>(job_.iterations));
  }
}

void Worker::OnReady(TimeNs now) {
  const TimeNs start = backward_starts_[iteration_];
  while (next_ready_ < plan_.by_readiness.size()) {
    const size_t tensor = plan_.by_readiness[next_ready_];
    const TimeNs ready = start + job_.ready_ns[tensor];
    if (ready > now) return events_.Add({ready, Kind::kReady, number_});
    Offer(tensor, now);
    ++next_ready_;
  }
}

void Worker::OnEnded(TimeNs now) {
  policy_->OnIteration(now);
  changed_ = true;
  ++iteration_;
  StartIteration(now);
}

void Worker::OnAsk(TimeNs now) {
  if (next_ask_.IsDue(now)) changed_ = true;
}

void Worker::OnAcked(size_t partition, TimeNs now) {
  const size_t tensor = plan_.tensor[partition];
  const auto first = static_cast<size_t>(job_.first_partition[tensor]);
  policy_->OnAcked({.key = KeyOf(tensor, partition - first)}, now);
  if (job_.record) transfers_[partition].acked_ns = now;
  changed_ = true;
}

void Worker::OnPulled(size_t partition, TimeNs now) {
  if (job_.record) {
    transfers_[partition].pulled_ns = now;
    record_.push_back(transfers_[partition]);
  }
  --missing_;
  --missing_of_[plan_.tensor[partition]];
  if (forward_) Forward(now);
}

void Worker::Wait(const Decision& decision, TimeNs now) {
  if (const auto again = next_ask_.After(decision, now)) {
    events_.Add({*again, Kind::kAsk, number_});
  }
}

void Worker::StartIteration(TimeNs now) {
  starts_[iteration_] = now;
  if (iteration_ == job_.iterations) return;
  forward_ = true;
  layer_ = 0;
  forward_end_ = now;
  Forward(now);
}

void Worker::Forward(TimeNs now) {
  if (job_.barrier && missing_ > 0) return;
  while (layer_ < job_.forward_ns.size() && missing_of_[layer_] == 0) {
    forward_end_ = std::max(forward_end_, now) + job_.forward_ns[layer_++];
  }
  if (layer_ == job_.forward_ns.size()) StartBackward(forward_end_);
}

void Worker::StartBackward(TimeNs start) {
  forward_ = false;
  backward_starts_[iteration_] = start;
  next_ready_ = 0;
  missing_ = 0;
  for (size_t tensor = 0; tensor < missing_of_.size(); ++tensor) {
    missing_of_[tensor] = job_.first_partition[tensor + 1] - job_.first_partition[tensor];
    missing_ += missing_of_[tensor];
  }
  if (!plan_.by_readiness.empty()) {
    const TimeNs first = job_.ready_ns[plan_.by_readiness.front()];
    events_.Add({start + first, Kind::kReady, number_});
  }
  events_.Add({start + job_.backward_ns, Kind::kEnded, number_});
}

void Worker::Offer(size_t tensor, TimeNs now) {
  const int64_t first = job_.first_partition[tensor];
  for (int64_t i = first; i < job_.first_partition[tensor + 1]; ++i) {
    const auto partition = static_cast<size_t>(i);
    const Item item{.key = KeyOf(tensor, static_cast<uint64_t>(i - first)),
                    .server = static_cast<uint32_t>(job_.server[partition]),
                    .priority = PriorityOf(static_cast<int64_t>(tensor)),
                    .bytes = static_cast<uint64_t>(job_.size_bytes[partition])};
    policy_->OnReady(item, now);
    if (job_.record) {
      transfers_[partition] = {.key = item.key,
                               .size_bytes = item.bytes,
                               .ready_ns = now,
                               .server = item.server,
                               .iteration = static_cast<uint32_t>(iteration_ + 1),
                               .priority = item.priority};
    }
  }
  changed_ = true;
}

}  // namespace prophet::engine
