#include "jobs.h"

#include <numeric>

#include "prophet/registry.h"

namespace prophet::engine {
namespace {

std::vector<int64_t> RandomRates(Random& random, size_t hosts) {
  const bool limited = random.Chance(70);
  const bool alike = random.Chance(60);
  std::vector<int64_t> rates(hosts);
  for (int64_t& rate : rates) {
    if (!alike && random.Chance(20)) continue;
    if (limited) rate = kBytePerNs * random.Uniform(1, 8) / random.Uniform(1, 8);
  }
  if (alike) rates.assign(hosts, rates.front());
  return rates;
}

}  // namespace

OwnedJob& OwnedJob::Add(int64_t forward, int64_t ready, const std::vector<int64_t>& sizes,
                        int32_t on_server) {
  forward_ns.push_back(forward);
  ready_ns.push_back(ready);
  size_bytes.insert(size_bytes.end(), sizes.begin(), sizes.end());
  server.resize(size_bytes.size(), on_server);
  first_partition.push_back(static_cast<int64_t>(size_bytes.size()));
  return *this;
}

Job OwnedJob::job() const {
  Job job = rest;
  job.forward_ns = forward_ns;
  job.ready_ns = ready_ns;
  job.first_partition = first_partition;
  job.size_bytes = size_bytes;
  job.server = server;
  job.worker_bandwidth_bps = worker_bandwidth_bps;
  job.server_bandwidth_bps = server_bandwidth_bps;
  return job;
}

PolicyMaker Makes(const std::string& policy, const Settings& settings) {
  return [=] { return MakePolicy(policy, settings); };
}

Result Simulate(const OwnedJob& job, const std::string& policy, const Settings& settings) {
  return Simulate(job.job(), Makes(policy, settings));
}

TimeNs Start(const OwnedJob& job, const Result& result, size_t worker, int64_t iteration) {
  return result.start_ns[worker * static_cast<size_t>(job.rest.iterations + 1) +
                         static_cast<size_t>(iteration)];
}

TimeNs Backward(const OwnedJob& job, const Result& result, size_t worker, int64_t iteration) {
  return result.backward_start_ns[worker * static_cast<size_t>(job.rest.iterations) +
                                  static_cast<size_t>(iteration)];
}

OwnedJob RandomJob(Random& random) {
  OwnedJob job;
  const auto servers = static_cast<size_t>(random.Uniform(1, 3));
  job.worker_bandwidth_bps = RandomRates(random, static_cast<size_t>(random.Uniform(1, 4)));
  job.server_bandwidth_bps = RandomRates(random, servers);
  job.rest.backward_ns = random.Magnitude(0, 2000);
  job.rest.iterations = random.Uniform(1, 4);
  job.rest.delay_ns = random.Chance(30) ? 0 : random.Magnitude(1, 300);
  job.rest.message_cost_ns = random.Chance(30) ? 0 : random.Magnitude(1, 100);
  if (random.Chance(30)) {
    job.rest.sum_bps = kBytePerNs * random.Uniform(1, 4);
    job.rest.sum_threads = random.Uniform(1, 3);
  }
  job.rest.stock_transport = random.Chance(20);
  job.rest.answer_by_priority = !job.rest.stock_transport && random.Chance(30);
  job.rest.barrier = random.Chance(20);
  job.rest.record = true;
  const int64_t tensors = random.Magnitude(1, 12);
  for (int64_t tensor = 0; tensor < tensors; ++tensor) {
    job.Add(random.Chance(20) ? 0 : random.Magnitude(1, 500),
            random.Uniform(0, 4) * job.rest.backward_ns / 4,
            std::vector<int64_t>(static_cast<size_t>(random.Uniform(0, 4))));
  }
  for (size_t i = 0; i < job.size_bytes.size(); ++i) {
    job.size_bytes[i] = random.Chance(10) ? 0 : random.Magnitude(1, 1000);
    job.server[i] = static_cast<int32_t>(random.Uniform(0, static_cast<int64_t>(servers) - 1));
  }
  return job;
}

}  // namespace prophet::engine
