// What holds for every job, under every policy: random ones, each named by its seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "jobs.h"
#include "prophet/bound.h"
#include "prophet/engine/fabric.h"
#include "prophet/registry.h"
#include "tests/prophet/rules.h"

namespace prophet::engine {
namespace {

constexpr uint64_t kJobs = 400;

TimeNs PassageNs(int64_t bytes, int64_t rate) {
  if (rate == 0) return 0;
  const auto speed = static_cast<uint64_t>(rate);
  return static_cast<TimeNs>((static_cast<uint64_t>(bytes) * kWorkPerByte + speed - 1) / speed);
}

class EveryPolicy : public testing::TestWithParam<std::string> {
 protected:
  // `check(job, result)` for many jobs.
  template <typename Check>
  void ForJobs(const Check& check) {
    for (uint64_t seed = 0; seed < kJobs; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      Random random(seed);
      const OwnedJob job = RandomJob(random);
      check(job, Simulate(job, GetParam(), RandomSettings(GetParam(), random)));
      if (HasFatalFailure()) return;
    }
  }
};

TEST_P(EveryPolicy, EverythingArrivesOnceAndInOrder) {
  ForJobs([](const OwnedJob& job, const Result& result) {
    for (size_t worker = 0; worker < job.worker_bandwidth_bps.size(); ++worker) {
      std::set<std::pair<uint32_t, uint64_t>> seen;
      TimeNs last = 0;
      for (const Transfer& transfer : result.transfers[worker]) {
        ASSERT_TRUE(seen.emplace(transfer.iteration, transfer.key).second);
        const TimeNs start = Backward(job, result, worker, transfer.iteration - 1);
        ASSERT_EQ(transfer.ready_ns, start + job.ready_ns[TensorOf(transfer.key)]);
        ASSERT_GE(transfer.sent_ns, transfer.ready_ns);
        const auto bytes = static_cast<int64_t>(transfer.size_bytes);
        const int64_t slowest_up = job.worker_bandwidth_bps[worker];
        const int64_t slowest_down = job.server_bandwidth_bps[transfer.server];
        const TimeNs one_way =
            job.rest.message_cost_ns + job.rest.delay_ns +
            std::max(PassageNs(bytes, slowest_up), PassageNs(bytes, slowest_down));
        ASSERT_GE(transfer.acked_ns, transfer.sent_ns + one_way + job.rest.delay_ns);
        ASSERT_GE(transfer.pulled_ns, transfer.sent_ns + 2 * one_way);
        ASSERT_GE(transfer.pulled_ns, transfer.acked_ns);
        ASSERT_GE(transfer.pulled_ns, last);
        last = transfer.pulled_ns;
        // Forward of the next iteration waits for it.
        const int64_t next = transfer.iteration;
        if (next < job.rest.iterations) {
          ASSERT_GE(Backward(job, result, worker, next), transfer.pulled_ns);
        }
      }
      ASSERT_EQ(seen.size(), job.size_bytes.size() * static_cast<size_t>(job.rest.iterations));
    }
  });
}

// No answer before every worker's push is there.
TEST_P(EveryPolicy, SumsWaitForAllWorkers) {
  ForJobs([](const OwnedJob& job, const Result& result) {
    std::map<std::pair<uint32_t, uint64_t>, TimeNs> last_push;
    for (const auto& transfers : result.transfers) {
      for (const Transfer& transfer : transfers) {
        TimeNs& last = last_push[{transfer.iteration, transfer.key}];
        // As shipped, an acknowledgement may come much later than its push.
        const TimeNs at_server = job.rest.stock_transport ? transfer.sent_ns + job.rest.delay_ns
                                                          : transfer.acked_ns - job.rest.delay_ns;
        last = std::max(last, at_server);
      }
    }
    for (const auto& transfers : result.transfers) {
      for (const Transfer& transfer : transfers) {
        const TimeNs after = last_push[{transfer.iteration, transfer.key}];
        ASSERT_GE(transfer.pulled_ns, after + job.rest.message_cost_ns + job.rest.delay_ns);
      }
    }
  });
}

// Whatever lies inside an interval fits through the link in it.
TEST_P(EveryPolicy, NoLinkIsFasterThanItsRate) {
  ForJobs([](const OwnedJob& job, const Result& result) {
    if (job.rest.stock_transport) return;  // when a push has left is not known
    for (size_t worker = 0; worker < job.worker_bandwidth_bps.size(); ++worker) {
      const int64_t rate = job.worker_bandwidth_bps[worker];
      if (rate == 0) continue;
      auto transfers = result.transfers[worker];
      std::sort(transfers.begin(), transfers.end(),
                [](const auto& a, const auto& b) { return a.acked_ns < b.acked_ns; });
      for (const Transfer& first : transfers) {
        int64_t bytes = 0;
        int64_t messages = 0;
        for (const Transfer& last : transfers) {
          if (last.sent_ns < first.sent_ns) continue;
          bytes += static_cast<int64_t>(last.size_bytes);
          ++messages;
          const TimeNs left = last.acked_ns - 2 * job.rest.delay_ns;
          ASSERT_GE(left - first.sent_ns,
                    PassageNs(bytes, rate) + messages * job.rest.message_cost_ns);
        }
      }
    }
  });
}

// A link that alone limits its traffic is busy for exactly as long as its traffic needs, but for
// what is rounded up.
TEST_P(EveryPolicy, LinksWasteNothing) {
  ForJobs([](const OwnedJob& job, const Result& result) {
    const auto& servers = job.server_bandwidth_bps;
    if (std::any_of(servers.begin(), servers.end(), [](int64_t rate) { return rate > 0; })) return;
    const int64_t partitions = static_cast<int64_t>(job.size_bytes.size()) * job.rest.iterations;
    for (size_t worker = 0; worker < job.worker_bandwidth_bps.size(); ++worker) {
      const int64_t rate = job.worker_bandwidth_bps[worker];
      if (rate == 0) continue;
      const LinkUse& up = result.up[worker];
      const TimeNs least = PassageNs(up.bytes, rate) + partitions * job.rest.message_cost_ns;
      ASSERT_GE(up.busy_ns, least - 1);
      ASSERT_LE(up.busy_ns, least + 3 * partitions);
      const LinkUse& down = result.down[worker];
      ASSERT_GE(down.busy_ns, PassageNs(down.bytes, rate) - 1);
      ASSERT_LE(down.busy_ns, PassageNs(down.bytes, rate) + 3 * partitions);
    }
  });
}

// Backward to backward is what the bound is about.
TEST_P(EveryPolicy, NoIterationIsShorterThanTheBound) {
  ForJobs([](const OwnedJob& job, const Result& result) {
    std::vector<int64_t> sizes(job.forward_ns.size());
    for (size_t tensor = 0; tensor < sizes.size(); ++tensor) {
      for (int64_t i = job.first_partition[tensor]; i < job.first_partition[tensor + 1]; ++i) {
        sizes[tensor] += job.size_bytes[static_cast<size_t>(i)];
      }
    }
    BoundInput input{.size_bytes = sizes,
                     .ready_ns = job.ready_ns,
                     .forward_ns = job.forward_ns,
                     .backward_ns = job.rest.backward_ns};
    const size_t workers = job.worker_bandwidth_bps.size();
    const auto rate = [](int64_t bps) { return bps > 0 ? std::optional(bps) : std::nullopt; };
    const auto& servers = job.server_bandwidth_bps;
    const bool all_limited = std::find(servers.begin(), servers.end(), 0) == servers.end();
    for (int64_t i = 1; i < job.rest.iterations; ++i) {
      TimeNs first = kNever;
      TimeNs last = 0;
      for (size_t worker = 0; worker < workers; ++worker) {
        input.bandwidth_bps = rate(job.worker_bandwidth_bps[worker]);
        const TimeNs before = Backward(job, result, worker, i - 1);
        const TimeNs after = Backward(job, result, worker, i);
        ASSERT_GE(after - before, IterationBoundNs(input));
        first = std::min(first, before);
        last = std::max(last, after);
      }
      if (!all_limited) continue;
      input.bandwidth_bps.reset();
      input.workers = static_cast<int64_t>(workers);
      input.servers = static_cast<int64_t>(servers.size());
      input.server_bandwidth_bps = *std::max_element(servers.begin(), servers.end());
      ASSERT_GE(last - first, IterationBoundNs(input));
      input.workers = input.servers = 1;
      input.server_bandwidth_bps.reset();
    }
  });
}

TEST_P(EveryPolicy, TheSameInputGivesTheSameBits) {
  for (uint64_t seed = 0; seed < kJobs / 4; ++seed) {
    Random random(seed);
    const OwnedJob job = RandomJob(random);
    const Settings settings = RandomSettings(GetParam(), random);
    const Result one = Simulate(job, GetParam(), settings);
    const Result two = Simulate(job, GetParam(), settings);
    ASSERT_EQ(one.start_ns, two.start_ns);
    ASSERT_EQ(one.events, two.events);
    for (size_t worker = 0; worker < one.transfers.size(); ++worker) {
      const auto& left = one.transfers[worker];
      const auto& right = two.transfers[worker];
      ASSERT_EQ(left.size(), right.size());
      ASSERT_TRUE(left.empty() ||
                  std::memcmp(left.data(), right.data(), left.size() * sizeof(Transfer)) == 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, EveryPolicy, testing::ValuesIn(PolicyNames()));

}  // namespace
}  // namespace prophet::engine
