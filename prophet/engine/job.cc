#include "prophet/engine/job.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "prophet/engine/fabric.h"

namespace prophet::engine {
namespace {

__extension__ typedef __int128 Wide;

constexpr int64_t kMaxTensors = 1 << 20;
constexpr int64_t kMaxPartitionsPerTensor = 1 << 16;
constexpr int64_t kMaxIterations = 1 << 20;
constexpr Wide kMaxNs = Wide{1} << 60;

void Require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument("simulated job: " + what);
}

bool Within(std::span<const int64_t> values, int64_t low, int64_t high) {
  return std::all_of(values.begin(), values.end(),
                     [=](int64_t value) { return value >= low && value <= high; });
}

void ValidatePartitions(const Job& job) {
  const auto tensors = static_cast<int64_t>(job.forward_ns.size());
  const auto partitions = static_cast<int64_t>(job.size_bytes.size());
  Require(tensors <= kMaxTensors, "too many tensors");
  Require(job.ready_ns.size() == job.forward_ns.size() &&
              job.first_partition.size() == job.forward_ns.size() + 1,
          "forward_ns, ready_ns and first_partition differ in length");
  Require(job.server.size() == job.size_bytes.size(), "size_bytes and server differ in length");
  Require(job.first_partition.front() == 0 && job.first_partition.back() == partitions,
          "first_partition must begin with 0 and end with the number of partitions");
  for (size_t tensor = 0; tensor < job.forward_ns.size(); ++tensor) {
    const int64_t count = job.first_partition[tensor + 1] - job.first_partition[tensor];
    Require(count >= 0 && count <= kMaxPartitionsPerTensor,
            "tensor " + std::to_string(tensor) + " must have 0 to 65536 partitions");
  }
  const auto servers = static_cast<int64_t>(job.server_bandwidth_bps.size());
  Require(std::all_of(job.server.begin(), job.server.end(),
                      [=](int32_t server) { return server >= 0 && server < servers; }),
          "server has an entry that is not a server's number");
  Require(Within(job.size_bytes, 0, kMaxMessageBytes),
          "size_bytes has an entry outside 0 to 2^31 - 1");
}

void ValidateNetwork(const Job& job) {
  const auto hosts = [](std::span<const int64_t> rates) {
    return !rates.empty() && rates.size() <= kMaxHosts;
  };
  Require(hosts(job.worker_bandwidth_bps) && hosts(job.server_bandwidth_bps),
          "there must be 1 to 1024 workers and servers");
  for (const auto rates : {job.worker_bandwidth_bps, job.server_bandwidth_bps}) {
    for (const int64_t rate : rates) {
      Require(rate == 0 || (rate >= kMinBandwidthBps && rate <= kMaxBandwidthBps),
              "a bandwidth must be 0 (not limited) or from " + std::to_string(kMinBandwidthBps) +
                  " to 2^40 bits per second, got " + std::to_string(rate));
    }
  }
  Require(job.message_cost_ns >= 0 && job.message_cost_ns <= kMaxMessageCostNs,
          "message_cost_ns must be from 0 to " + std::to_string(kMaxMessageCostNs));
  Require(job.sum_bps == 0 || (job.sum_bps >= kMinBandwidthBps && job.sum_bps <= kMaxBandwidthBps),
          "sum_bps must be 0 or from " + std::to_string(kMinBandwidthBps) + " to 2^40");
  Require(!job.answer_by_priority || !job.stock_transport,
          "as shipped, servers do not answer by priority");
  Require(job.sum_threads >= 1 && job.sum_threads <= kMaxHosts,
          "sum_threads must be from 1 to 1024");
}

}  // namespace

void Validate(const Job& job) {
  Require(job.iterations >= 1 && job.iterations <= kMaxIterations,
          "iterations must be from 1 to 2^20");
  ValidateNetwork(job);
  ValidatePartitions(job);
  constexpr auto kLongest = static_cast<int64_t>(kMaxNs);
  Require(Within(job.forward_ns, 0, kLongest) && Within(job.ready_ns, 0, kLongest) &&
              job.backward_ns >= 0 && job.backward_ns <= kLongest && job.delay_ns >= 0 &&
              job.delay_ns <= kLongest,
          "times must be from 0 to 2^60 ns");

  Require(Within(job.ready_ns, 0, job.backward_ns), "ready_ns has an entry after backward_ns");

  // One thing after another takes longer than any schedule.
  int64_t slowest_bps = job.sum_bps == 0 ? kMaxBandwidthBps : job.sum_bps;
  for (const auto rates : {job.worker_bandwidth_bps, job.server_bandwidth_bps}) {
    for (const int64_t rate : rates) {
      if (rate > 0) slowest_bps = std::min(slowest_bps, rate);
    }
  }
  Wide iteration_ns = job.backward_ns;
  for (const int64_t forward_ns : job.forward_ns) iteration_ns += forward_ns;
  for (const int64_t ready_ns : job.ready_ns) iteration_ns += ready_ns;
  const Wide workers = static_cast<Wide>(job.worker_bandwidth_bps.size());
  for (const int64_t bytes : job.size_bytes) {
    const Wide passage_ns = Wide{bytes} * static_cast<Wide>(kWorkPerByte) / slowest_bps + 1;
    iteration_ns +=
        workers * (3 * passage_ns + 2 * Wide{job.message_cost_ns} + 4 * Wide{job.delay_ns});
  }
  Require(iteration_ns * job.iterations <= kMaxNs, "it may last longer than 2^60 ns");
}

}  // namespace prophet::engine
