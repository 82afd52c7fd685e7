// A simulated job as a graph comes out as the engine of simulated jobs has it, to the nanosecond,
// under every policy.
//
// The two break ties between answers of one time differently, so sizes are such that there are
// none.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "job_graph.h"
#include "prophet/registry.h"

namespace prophet::graph {
namespace {

constexpr uint64_t kJobs = 150;

engine::OwnedJob RandomJob(Random& random) {
  engine::OwnedJob job = engine::RandomJob(random);
  job.rest.stock_transport = false;
  job.rest.barrier = false;
  for (int64_t& size : job.size_bytes) size = random.Uniform(1'000'000, 3'000'000);
  for (auto* rates : {&job.worker_bandwidth_bps, &job.server_bandwidth_bps}) {
    for (int64_t& rate : *rates) {
      if (rate > 0) rate = random.Uniform(1'000'000'000, 9'000'000'000);
    }
  }
  // Something has to take time.
  for (int64_t& rate : job.worker_bandwidth_bps) {
    if (rate == 0) rate = random.Uniform(1'000'000'000, 9'000'000'000);
  }
  job.rest.backward_ns *= 10'000;
  for (int64_t& ready : job.ready_ns) ready *= 10'000;
  return job;
}

class EveryPolicy : public testing::TestWithParam<std::string> {};

TEST_P(EveryPolicy, AJobIsTheSameAsAGraph) {
  for (uint64_t seed = 0; seed < kJobs; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const engine::OwnedJob job = RandomJob(random);
    Settings settings;
    if (GetParam() == "bytescheduler") settings["credit_bytes"] = random.Uniform(1, 8'000'000);
    if (GetParam() == "p3") settings["outstanding_messages"] = random.Uniform(1, 4);
    const engine::Result expected = engine::Simulate(job, GetParam(), settings);
    JobGraph as_graph = GraphOf(job);
    const Result result = Replay(as_graph.graph, GetParam(), settings);
    for (size_t worker = 0; worker < job.worker_bandwidth_bps.size(); ++worker) {
      for (int64_t i = 0; i < job.rest.iterations; ++i) {
        const auto begin = as_graph.begins[worker][static_cast<size_t>(i)];
        ASSERT_EQ(result.start_ns[static_cast<size_t>(begin)],
                  engine::Start(job, expected, worker, i));
      }
      for (const engine::Transfer& transfer : expected.transfers[worker]) {
        const auto& ways = as_graph.ways[worker][transfer.iteration - 1];
        const auto way = std::find_if(ways.begin(), ways.end(),
                                      [&](const Way& one) { return one.key == transfer.key; });
        ASSERT_NE(way, ways.end());
        ASSERT_EQ(result.ready_ns[static_cast<size_t>(way->push)], transfer.ready_ns);
        ASSERT_EQ(result.sent_ns[way->row], transfer.sent_ns);
        ASSERT_EQ(result.end_ns[static_cast<size_t>(way->acknowledgement)], transfer.acked_ns);
        ASSERT_EQ(result.end_ns[static_cast<size_t>(way->pull)] + job.rest.delay_ns,
                  transfer.pulled_ns);
      }
    }
  }
}

TEST_P(EveryPolicy, LinksAreAsBusy) {
  for (uint64_t seed = 0; seed < kJobs / 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const engine::OwnedJob job = RandomJob(random);
    const engine::Result expected = engine::Simulate(job, GetParam());
    JobGraph as_graph = GraphOf(job);
    const Result result = Replay(as_graph.graph, GetParam());
    // Links of the graph: workers up, servers down, servers up, workers down.
    const size_t workers = job.worker_bandwidth_bps.size();
    const size_t servers = job.server_bandwidth_bps.size();
    std::vector<engine::LinkUse> uses(expected.up.begin(),
                                      expected.up.begin() + static_cast<long>(workers));
    uses.insert(uses.end(), expected.down.begin() + static_cast<long>(workers),
                expected.down.end());
    uses.insert(uses.end(), expected.up.begin() + static_cast<long>(workers), expected.up.end());
    uses.insert(uses.end(), expected.down.begin(),
                expected.down.begin() + static_cast<long>(workers));
    ASSERT_EQ(uses.size(), 2 * (workers + servers));
    for (size_t link = 0; link < uses.size(); ++link) {
      ASSERT_EQ(result.link_bytes[link], uses[link].bytes);
      ASSERT_EQ(result.link_busy_ns[link], uses[link].busy_ns);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Graph, EveryPolicy, testing::ValuesIn(PolicyNames()));

}  // namespace
}  // namespace prophet::graph
