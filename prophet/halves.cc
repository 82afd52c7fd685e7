#include "prophet/halves.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <stdexcept>
#include <utility>

namespace prophet {
namespace {

constexpr TimeNs kMost = TimeNs{1} << 60;

template <typename T>
using Smallest = std::priority_queue<T, std::vector<T>, std::greater<T>>;

TimeNs Added(TimeNs total, TimeNs more) {
  if (more < 0 || more > kMost - total)
    throw std::invalid_argument("halves: times must not be negative, nor beyond 2^60 ns in sum");
  return total + more;
}

void Check(const Halves& halves) {
  const size_t count = halves.ready_ns.size();
  for (const auto& each : {halves.reduce_ns, halves.gather_ns, halves.reduce_place,
                           halves.gather_place, halves.after_step}) {
    if (each.size() != count) throw std::invalid_argument("halves: lengths differ");
  }
  std::vector<bool> taken(2 * count);
  for (const auto& places : {halves.reduce_place, halves.gather_place}) {
    for (const int64_t place : places) {
      if (place < 0 || static_cast<size_t>(place) >= 2 * count || taken[static_cast<size_t>(place)])
        throw std::invalid_argument("halves: places must be all of 0 to 2 n - 1");
      taken[static_cast<size_t>(place)] = true;
    }
  }
  // No half ends later than the latest that is ready, plus all that need the link.
  TimeNs total = Added(0, halves.step_ns);
  TimeNs latest = 0;
  for (const TimeNs ready : halves.ready_ns) latest = std::max(latest, Added(0, ready));
  total = Added(total, latest);
  for (const TimeNs need : halves.reduce_ns) total = Added(total, need);
  for (const TimeNs need : halves.gather_ns) total = Added(total, need);
}

}  // namespace

HalfTimes TimesOfHalves(const Halves& halves) {
  Check(halves);
  const size_t count = halves.ready_ns.size();
  struct Half {
    size_t bucket = 0;
    bool gathers = false;
    TimeNs left_ns = 0;
    TimeNs start_ns = -1;
    TimeNs end_ns = 0;
  };
  std::vector<Half> at(2 * count);              // by place
  Smallest<std::pair<TimeNs, size_t>> to_come;  // when it is ready, and its place
  for (size_t bucket = 0; bucket < count; ++bucket) {
    const auto reduce = static_cast<size_t>(halves.reduce_place[bucket]);
    at[reduce] = {bucket, false, halves.reduce_ns[bucket]};
    at[static_cast<size_t>(halves.gather_place[bucket])] = {bucket, true, halves.gather_ns[bucket]};
    to_come.emplace(halves.ready_ns[bucket], reduce);
  }
  Smallest<size_t> ready;
  TimeNs now = 0;
  while (!ready.empty() || !to_come.empty()) {
    if (ready.empty()) now = std::max(now, to_come.top().first);
    for (; !to_come.empty() && to_come.top().first <= now; to_come.pop())
      ready.push(to_come.top().second);
    Half& half = at[ready.top()];
    if (half.start_ns < 0) half.start_ns = now;
    if (!to_come.empty() && to_come.top().first < now + half.left_ns) {
      half.left_ns -= to_come.top().first - now;
      now = to_come.top().first;
      continue;
    }
    ready.pop();
    now += half.left_ns;
    half.end_ns = now;
    if (half.gathers) continue;
    const bool waits = halves.after_step[half.bucket] != 0;
    to_come.emplace(waits ? std::max(now, halves.step_ns) : now,
                    static_cast<size_t>(halves.gather_place[half.bucket]));
  }
  HalfTimes times;
  for (auto* each :
       {&times.reduce_start, &times.reduce_end, &times.gather_start, &times.gather_end})
    each->resize(count);
  for (const Half& half : at) {
    (half.gathers ? times.gather_start : times.reduce_start)[half.bucket] = half.start_ns;
    (half.gathers ? times.gather_end : times.reduce_end)[half.bucket] = half.end_ns;
  }
  return times;
}

}  // namespace prophet
