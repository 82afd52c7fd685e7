#include "rules.h"

#include <algorithm>
#include <stdexcept>

namespace prophet {
namespace {

Gate OpenIf(bool open) { return open ? Gate::kOpen : Gate::kClosed; }

Rules Prophet(const Settings& settings) {
  const auto floor = static_cast<uint64_t>(settings.at("window_floor_bytes"));
  const auto max = static_cast<uint64_t>(settings.at("window_max_bytes"));
  const auto partition = static_cast<uint64_t>(settings.at("partition_bytes"));
  const auto given_bytes_per_ns = static_cast<double>(settings.at("bandwidth_bps")) / 8e9;
  // A floor of 0 follows the link: at least a partition, but the maximum while nothing is known.
  const uint64_t surely_open = floor > 0 ? floor : std::min(max, partition);
  return {false, [=](const Item& head, const ServerLoad& load, const History& history) {
            // Beside the server's window there is the link's, for all servers together.
            if (IsUnranked(head) || history.in_flight_bytes < surely_open) return Gate::kOpen;
            if (load.bytes < max) return Gate::kEither;
            if (floor > 0) return Gate::kClosed;
            // The floor that follows the link may be above the maximum: a partition and what the
            // link carries in the delay and a millisecond, or what acknowledgements wait for. No
            // sample is shorter than a millisecond.
            const double bytes_per_ns = given_bytes_per_ns > 0
                                            ? given_bytes_per_ns
                                            : static_cast<double>(history.acked_bytes) / 1e6;
            const double link_bytes = std::max(
                128.0 * 1024, bytes_per_ns * (static_cast<double>(history.longest_delay_ns) + 1e6));
            return static_cast<double>(load.bytes) < static_cast<double>(partition) + link_bytes
                       ? Gate::kEither
                       : Gate::kClosed;
          }};
}

Rules ProphetPaper(const Settings& settings) {
  const bool given = settings.at("bandwidth_bps") > 0;
  return {false, [=](const Item& head, const ServerLoad& load, const History& history) {
            // Nothing acknowledged: no bandwidth, and so no blocks.
            const bool unknown = !given && history.acked_bytes == 0;
            return IsUnranked(head) || load.messages == 0 || unknown ? Gate::kOpen : Gate::kEither;
          }};
}

}  // namespace

Settings RandomSettings(const std::string& policy, Random& random) {
  constexpr int64_t kMiB = 1 << 20;
  Settings settings{{"partition_bytes", random.Magnitude(1, 4 * kMiB)}};
  if (policy == "p3") {
    // Half of the cases with the published two.
    settings["outstanding_messages"] = random.Chance(50) ? 2 : random.Magnitude(1, 256);
  } else if (policy == "bytescheduler-reduce") {
    settings["credit_partitions"] = random.Magnitude(1, 256);
  } else if (policy == "bytescheduler") {
    settings["credit_bytes"] = random.Magnitude(1, 16 * kMiB);
  } else if (policy == "prophet-paper") {
    settings["bandwidth_bps"] = random.Chance(50) ? 0 : random.Magnitude(1, 100'000'000'000);
  } else if (policy == "prophet") {
    const int64_t max = random.Magnitude(1, 16 * kMiB);
    settings["window_max_bytes"] = max;
    settings["window_floor_bytes"] = random.Chance(40) ? 0 : random.Uniform(1, max);
    settings["bandwidth_bps"] = random.Chance(50) ? 0 : random.Magnitude(1, 100'000'000'000);
  }
  return settings;
}

Rules RulesOf(const std::string& policy, const Settings& settings) {
  if (policy == "fifo" || policy == "bytescheduler-reduce") {
    return {true, [](const Item&, const ServerLoad&, const History&) { return Gate::kOpen; }};
  }
  if (policy == "p3") {
    const auto limit = static_cast<size_t>(settings.at("outstanding_messages"));
    return {false, [=](const Item&, const ServerLoad& load, const History&) {
              return OpenIf(load.messages < limit);
            }};
  }
  if (policy == "bytescheduler") {
    const int64_t credit = settings.at("credit_bytes");
    return {false, [=](const Item&, const ServerLoad& load, const History&) {
              return OpenIf(credit - static_cast<int64_t>(load.bytes) > 0);
            }};
  }
  if (policy == "prophet") return Prophet(settings);
  if (policy == "prophet-paper") return ProphetPaper(settings);
  throw std::logic_error("no rules are written down for " + policy);
}

}  // namespace prophet
