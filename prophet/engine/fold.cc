#include "prophet/engine/fold.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace prophet::engine {
namespace {

// Rows of `length` entries, each where `places` has its number.
std::vector<TimeNs> Rows(const std::vector<TimeNs>& rows, size_t length,
                         const std::vector<size_t>& places) {
  std::vector<TimeNs> all;
  all.reserve(places.size() * length);
  for (const size_t place : places) {
    const auto first = rows.begin() + static_cast<std::ptrdiff_t>(place * length);
    all.insert(all.end(), first, first + static_cast<std::ptrdiff_t>(length));
  }
  return all;
}

// Workers then servers.
std::vector<LinkUse> Uses(const std::vector<LinkUse>& uses, size_t workers,
                          const std::vector<size_t>& places) {
  std::vector<LinkUse> all;
  for (const size_t place : places) all.push_back(uses[place]);
  all.insert(all.end(), uses.begin() + static_cast<std::ptrdiff_t>(workers), uses.end());
  return all;
}

}  // namespace

Fold::Fold(const Job& job) : job_(job), stands_for_(job.worker_bandwidth_bps.size()) {
  const size_t workers = stands_for_.size();
  std::unordered_map<int64_t, size_t> numbers;  // by rate, from the last
  for (size_t worker = workers; worker-- > 0;) {
    const int64_t bps = job.worker_bandwidth_bps[worker];
    size_t number = worker_bps_.size();
    if (job.sum_bps == 0) number = numbers.try_emplace(bps, number).first->second;
    if (number == worker_bps_.size()) {
      worker_bps_.push_back(bps);
      counts_.push_back(0);
    }
    ++counts_[number];
    stands_for_[worker] = number;
  }
  std::reverse(worker_bps_.begin(), worker_bps_.end());
  std::reverse(counts_.begin(), counts_.end());
  for (size_t& number : stands_for_) number = worker_bps_.size() - 1 - number;
  job_.worker_bandwidth_bps = worker_bps_;
}

Result Fold::Unfold(Result folded) const {
  const size_t left = counts_.size();
  if (left == stands_for_.size()) return folded;
  const auto iterations = static_cast<size_t>(job_.iterations);
  folded.start_ns = Rows(folded.start_ns, iterations + 1, stands_for_);
  folded.backward_start_ns = Rows(folded.backward_start_ns, iterations, stands_for_);
  folded.up = Uses(folded.up, left, stands_for_);
  folded.down = Uses(folded.down, left, stands_for_);
  std::vector<std::vector<Transfer>> transfers;
  for (const size_t number : stands_for_) transfers.push_back(folded.transfers[number]);
  folded.transfers = std::move(transfers);
  return folded;
}

}  // namespace prophet::engine
