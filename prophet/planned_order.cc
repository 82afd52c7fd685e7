#include "prophet/planned_order.h"

#include <algorithm>
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
  std::vector<Coming> coming;  // the earliest last
  for (const auto& [key, known] : known_) {
    const auto ready = ready_ns_.find(TensorOf(key));
    if (ready != ready_ns_.end()) coming.push_back({ready->second, known.item});
  }
  if (coming.empty()) return;
  std::sort(coming.begin(), coming.end(),
            [](const Coming& a, const Coming& b) { return a.ready_ns > b.ready_ns; });
  planned_ns_ = coming.front().ready_ns - coming.back().ready_ns;
  const auto last_ns = static_cast<double>(coming.front().ready_ns);
  const double urgent_from_ns = last_ns * (1 - kLastShare);
  const auto is_urgent = [&](const Coming& one) {
    return static_cast<double>(one.ready_ns) >= urgent_from_ns;
  };

  const auto goes_later = [](const Coming& a, const Coming& b) {
    return std::pair(RankByPriority(a.item), a.item.key) >
           std::pair(RankByPriority(b.item), b.item.key);
  };
  std::priority_queue<Coming, std::vector<Coming>, decltype(goes_later)> waiting(goes_later);
  int64_t next_rank = kInOrder;
  double now_ns = 0;
  while (now_ns < last_ns) {
    if (waiting.empty()) now_ns = std::max(now_ns, static_cast<double>(coming.back().ready_ns));
    while (!coming.empty() && static_cast<double>(coming.back().ready_ns) <= now_ns) {
      waiting.push(coming.back());
      coming.pop_back();
    }
    if (now_ns >= last_ns) break;
    const Coming sent = waiting.top();
    waiting.pop();
    if (!is_urgent(sent)) ranks_[sent.item.key] = next_rank++;
    now_ns += static_cast<double>(sent.item.bytes) / bytes_per_ns_;
  }
  for (; !waiting.empty(); waiting.pop()) {
    const Coming& left = waiting.top();
    if (!is_urgent(left)) ranks_[left.item.key] = kLeft + RankByPriority(left.item);
  }
}

}  // namespace prophet
