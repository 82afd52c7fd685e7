#include "prophet/policy/planned_order.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

namespace prophet {
namespace {

// Above all that priorities give, and above all positions.
constexpr int64_t kInOrder = int64_t{1} << 32;
constexpr int64_t kLeft = int64_t{1} << 33;

}  // namespace

void PlannedOrder::SetReadyTimes(std::span<const ReadyTime> times) {
  for (const ReadyTime& time : times) ready_ns_[time.tensor] = time.ready_ns;
  changed_ = true;
}

void PlannedOrder::SetBandwidth(double bytes_per_ns) {
  changed_ |= bytes_per_ns != bytes_per_ns_;
  bytes_per_ns_ = bytes_per_ns;
}

void PlannedOrder::OnReady(const Item& item, TimeNs now) {
  if (IsUnranked(item)) return;
  const auto [found, is_new] = known_.try_emplace(item.key, Known{item, 0});
  Known& known = found->second;
  if (known.iteration == iteration_) return;
  if (came_++ == 0) first_ready_ns_ = now;
  last_ready_ns_ = now;
  changed_ |= is_new || known.item != item;
  known = {item, iteration_};
}

void PlannedOrder::OnIteration(std::optional<double> link_bytes_per_ns) {
  if (came_ == 0) return;
  if (came_ < known_.size()) {
    changed_ = true;
    std::erase_if(known_, [&](const auto& entry) { return entry.second.iteration != iteration_; });
  }
  came_ = 0;
  ++iteration_;
  if (std::exchange(changed_, false)) Plan();
  fits_ = link_bytes_per_ns.value_or(bytes_per_ns_) >= kSlowest * bytes_per_ns_ &&
          static_cast<double>(last_ready_ns_ - first_ready_ns_) >=
              kShortest * static_cast<double>(planned_ns_);
}

int64_t PlannedOrder::RankOf(const Item& item) const {
  const auto rank = fits_ ? ranks_.find(item.key) : ranks_.end();
  return rank == ranks_.end() ? RankByPriority(item) : rank->second;
}

void PlannedOrder::Plan() {
  struct Coming {
    TimeNs ready_ns;
    Item item;
  };
  ranks_.clear();
  planned_ns_ = 0;
  if (bytes_per_ns_ <= 0) return;
  std::vector<Coming> coming;  // the earliest first
  for (const auto& [key, known] : known_) {
    const auto ready = ready_ns_.find(TensorOf(key));
    if (ready != ready_ns_.end()) coming.push_back({ready->second, known.item});
  }
  if (coming.empty()) return;
  std::sort(coming.begin(), coming.end(),
            [](const Coming& a, const Coming& b) { return a.ready_ns < b.ready_ns; });
  planned_ns_ = coming.back().ready_ns - coming.front().ready_ns;
  const double late_from_ns = static_cast<double>(coming.back().ready_ns) * (1 - kLastShare);
  const auto late = std::find_if(coming.begin(), coming.end(), [&](const Coming& one) {
    return static_cast<double>(one.ready_ns) >= late_from_ns;
  });

  const auto goes_later = [](const Item& a, const Item& b) {
    return std::pair(RankByPriority(a), a.key) > std::pair(RankByPriority(b), b.key);
  };
  std::priority_queue<Item, std::vector<Item>, decltype(goes_later)> waiting(goes_later);
  // Of what is not late: the most urgent that the slowest link may still have when the late come.
  int64_t most_urgent = std::numeric_limits<int64_t>::max();
  int64_t next_rank = kInOrder;
  double now_ns = 0;
  for (auto next = coming.begin(); next != late || !waiting.empty();) {
    if (waiting.empty()) now_ns = std::max(now_ns, static_cast<double>(next->ready_ns));
    if (now_ns >= late_from_ns) break;
    for (; next != late && static_cast<double>(next->ready_ns) <= now_ns; ++next)
      waiting.push(next->item);
    const Item sent = waiting.top();
    waiting.pop();
    ranks_[sent.key] = next_rank++;
    now_ns += static_cast<double>(sent.bytes) / bytes_per_ns_;
    if (now_ns > kSlowest * late_from_ns) most_urgent = std::min(most_urgent, RankByPriority(sent));
  }
  for (auto one = coming.begin(); one != late; ++one) {
    const int64_t by_priority = RankByPriority(one->item);
    const bool is_left = ranks_.try_emplace(one->item.key, kLeft + by_priority).second;
    if (is_left) most_urgent = std::min(most_urgent, by_priority);
  }
  for (auto one = late; one != coming.end(); ++one) {
    const int64_t by_priority = RankByPriority(one->item);
    if (by_priority >= most_urgent) ranks_[one->item.key] = kLeft + by_priority;
  }
}

}  // namespace prophet
