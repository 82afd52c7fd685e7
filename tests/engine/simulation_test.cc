// Jobs small enough to be worked by hand. A byte takes a nanosecond where a link is limited.
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "jobs.h"
#include "prophet/registry.h"

namespace prophet::engine {
namespace {

// What a worker's iterations take, start to start.
std::vector<TimeNs> Iterations(const OwnedJob& job, const Result& result, size_t worker = 0) {
  std::vector<TimeNs> times;
  for (int64_t i = 0; i < job.rest.iterations; ++i) {
    times.push_back(Start(job, result, worker, i + 1) - Start(job, result, worker, i));
  }
  return times;
}
using Times = std::vector<TimeNs>;

TEST(Simulation, WithoutTensorsAnIterationIsItsBackward) {
  OwnedJob job;
  job.rest.backward_ns = 7;
  job.rest.iterations = 3;
  EXPECT_EQ(Iterations(job, Simulate(job, "fifo")), (Times{7, 7, 7}));
}

TEST(Simulation, OneTensorIsAChain) {
  // Ready at 10 of backward's 10, 100 to push, 100 to pull, two delays, then forward.
  OwnedJob job;
  job.Add(20, 10, {100});
  job.rest.backward_ns = 10;
  job.rest.delay_ns = 3;
  job.rest.iterations = 3;
  job.rest.record = true;
  const Result result = Simulate(job, "fifo");
  EXPECT_EQ(Iterations(job, result), (Times{30, 206 + 30, 206 + 30}));
  ASSERT_EQ(result.transfers[0].size(), 3u);
  const Transfer& first = result.transfers[0][0];
  EXPECT_EQ(first.key, 0u);
  EXPECT_EQ(first.size_bytes, 100u);
  EXPECT_EQ(first.ready_ns, 30);
  EXPECT_EQ(first.sent_ns, 30);
  EXPECT_EQ(first.acked_ns, 30 + 100 + 6);
  EXPECT_EQ(first.pulled_ns, 30 + 100 + 3 + 100 + 3);
  EXPECT_EQ(first.priority, -1);
  EXPECT_EQ(result.transfers[0][2].iteration, 3u);  // counted from 1
}

TEST(Simulation, PullsUseTheOtherDirectionOfTheLink) {
  // Two partitions: the second is pushed while the first is pulled.
  OwnedJob job;
  job.Add(0, 0, {100, 100});
  job.rest.iterations = 2;
  EXPECT_EQ(Iterations(job, Simulate(job, "fifo")), (Times{0, 300}));
}

TEST(Simulation, ForwardGoesOnLayerByLayer) {
  // Both are ready at 50. The first layer's is pushed first and back at 250; its forward time hides
  // what the second one needs (back at 350) all but 20.
  OwnedJob job;
  job.Add(80, 50, {100}).Add(5, 50, {100});
  job.rest.backward_ns = 50;
  job.rest.iterations = 2;
  EXPECT_EQ(Iterations(job, Simulate(job, "p3"))[1], 200 + 100 + 5 + 50);
  job.rest.barrier = true;
  EXPECT_EQ(Iterations(job, Simulate(job, "p3"))[1], 300 + 80 + 5 + 50);
  // In order of arrival the last layer's goes first: its pull is done when the other's is.
  job.rest.barrier = false;
  EXPECT_EQ(Iterations(job, Simulate(job, "fifo"))[1], 300 + 80 + 5 + 50);
}

TEST(Simulation, AnUrgentTensorWaitsForWhatIsInFlight) {
  // 1000 bytes of the last layer from 0 on, in ten partitions; 10 bytes of the first at 50.
  OwnedJob job;
  job.Add(0, 50, {10}).Add(2000, 0, std::vector<int64_t>(10, 100));
  job.rest.backward_ns = 50;
  job.rest.iterations = 1;
  job.rest.record = true;
  const auto pulled = [&](const char* policy, const Settings& settings) {
    const Result result = Simulate(job, policy, settings);
    for (const Transfer& transfer : result.transfers[0]) {
      if (transfer.key == 0) return transfer.pulled_ns - 2000;
    }
    return TimeNs{-1};
  };
  // The answer waits for the ones before it, too: 100 after the push before has left.
  EXPECT_EQ(pulled("bytescheduler", {{"credit_bytes", 1}}), 100 + 10 + 90 + 10);
  EXPECT_EQ(pulled("bytescheduler", {{"credit_bytes", 400}}), 400 + 10 + 90 + 10);
  EXPECT_EQ(pulled("fifo", {}), 1000 + 10 + 90 + 10);
}

TEST(Simulation, AWindowOfOneMessagePaysTheDelayEachTime) {
  OwnedJob job;
  job.Add(0, 0, std::vector<int64_t>(10, 100));
  job.rest.iterations = 2;
  job.rest.delay_ns = 30;
  // Nine times push and acknowledgement, then the last push and its pull.
  EXPECT_EQ(Iterations(job, Simulate(job, "p3", {{"outstanding_messages", 1}}))[1],
            9 * (100 + 60) + 200 + 60);
  // Two of 100 cover a round trip of 160 between them.
  EXPECT_EQ(Iterations(job, Simulate(job, "p3", {{"outstanding_messages", 2}}))[1],
            10 * 100 + 60 + 100);
}

TEST(Simulation, EachMessageCostsItsSender) {
  OwnedJob job;
  job.Add(0, 0, std::vector<int64_t>(4, 100));
  job.rest.iterations = 2;
  job.rest.message_cost_ns = 25;
  // The server's link is not limited, but its costs come one after another.
  EXPECT_EQ(Iterations(job, Simulate(job, "fifo"))[1], 4 * 125 + 25 + 100);
}

TEST(Simulation, TwoWorkersShareAServersLink) {
  OwnedJob job;
  job.worker_bandwidth_bps = {kBytePerNs, kBytePerNs};
  job.server_bandwidth_bps = {kBytePerNs};
  job.Add(0, 0, {100});
  job.rest.iterations = 2;
  const Result result = Simulate(job, "fifo");
  // Both pushes at half rate, then both answers.
  for (size_t worker : {0, 1}) EXPECT_EQ(Iterations(job, result, worker)[1], 200 + 200);
  EXPECT_EQ(result.down[2].busy_ns, 2 * 200);  // of the server
  EXPECT_EQ(result.down[2].bytes, 2 * 2 * 100);
}

TEST(Simulation, TheSlowestWorkerDecides) {
  OwnedJob job;
  job.worker_bandwidth_bps = {kBytePerNs, kBytePerNs / 10};
  job.Add(0, 0, {100});
  job.rest.iterations = 2;
  const Result result = Simulate(job, "fifo");
  EXPECT_EQ(Iterations(job, result, 0)[1], 1000 + 100);
  EXPECT_EQ(Iterations(job, result, 1)[1], 1000 + 1000);
}

TEST(Simulation, ServersAddUpPerThread) {
  OwnedJob job;
  job.worker_bandwidth_bps = {0, 0};
  job.Add(0, 0, {100, 100});
  job.rest.iterations = 2;
  job.rest.sum_bps = kBytePerNs;
  EXPECT_EQ(Iterations(job, Simulate(job, "fifo"))[1], 400);
  job.rest.sum_threads = 2;
  EXPECT_EQ(Iterations(job, Simulate(job, "fifo"))[1], 200);
}

TEST(Simulation, AnswersLeaveInOrderOrByPriority) {
  // The last layer's 1000 bytes are pushed and summed first; while they are on the way back, the
  // two others are summed, the first layer's last.
  OwnedJob job;
  job.Add(0, 0, {10}).Add(0, 0, {10}).Add(0, 0, {1000});
  job.rest.sum_bps = kBytePerNs;
  job.rest.record = true;
  const auto order = [&] {
    const Result result = Simulate(job, "fifo");
    std::vector<std::pair<uint64_t, TimeNs>> answers;
    for (const Transfer& t : result.transfers[0])
      answers.emplace_back(TensorOf(t.key), t.pulled_ns);
    return answers;
  };
  using Answers = std::vector<std::pair<uint64_t, TimeNs>>;
  EXPECT_EQ(order(), (Answers{{2, 3000}, {1, 3010}, {0, 3020}}));
  job.rest.answer_by_priority = true;
  EXPECT_EQ(order(), (Answers{{2, 3000}, {0, 3010}, {1, 3020}}));
}

TEST(Simulation, StockRequestsPullsBehindPushes) {
  // Four pushes leave back to back; each request is made when its push is acknowledged, and waits
  // in the socket for the pushes that were there before.
  OwnedJob job;
  job.Add(0, 0, std::vector<int64_t>(4, 100));
  job.rest.iterations = 2;
  job.rest.stock_transport = true;
  EXPECT_EQ(Iterations(job, Simulate(job, "fifo"))[1], 400 + 400);
}

TEST(Simulation, APolicyThatKeepsWhatItHasIsAnError) {
  class Keeper final : public Policy {
   public:
    void OnReady(const Item& /*item*/, TimeNs /*now*/) override { ++pending_; }
    void OnAcked(const Item& /*item*/, TimeNs /*now*/) override {}
    void OnIteration(TimeNs /*now*/) override {}
    Decision Next(TimeNs /*now*/) override { return {}; }
    size_t pending() const override { return pending_; }
    std::string_view name() const override { return "keeper"; }
    void Reconfigure(const Settings& /*overrides*/) override {}
    const Settings& settings() const override { return settings_; }

   private:
    size_t pending_ = 0;
    Settings settings_;
  };
  OwnedJob job;
  job.Add(0, 0, {100});
  EXPECT_THROW(Simulate(job.job(), [] { return std::make_unique<Keeper>(); }), std::logic_error);
}

TEST(Simulation, APolicyMayAskForTime) {
  // Sends each item 40 after it became ready.
  class Waiter final : public Policy {
   public:
    void OnReady(const Item& item, TimeNs now) override { items_.emplace_back(now + 40, item); }
    void OnAcked(const Item& /*item*/, TimeNs /*now*/) override {}
    void OnIteration(TimeNs /*now*/) override {}
    Decision Next(TimeNs now) override {
      if (items_.empty()) return {};
      const auto [due, item] = items_.front();
      if (due > now) return {.kind = Decision::Kind::kWaitUntil, .ask_again_ns = due};
      items_.erase(items_.begin());
      return {.kind = Decision::Kind::kSend, .item = item};
    }
    size_t pending() const override { return items_.size(); }
    std::string_view name() const override { return "waiter"; }
    void Reconfigure(const Settings& /*overrides*/) override {}
    const Settings& settings() const override { return settings_; }

   private:
    std::vector<std::pair<TimeNs, Item>> items_;
    Settings settings_;
  };
  OwnedJob job;
  job.Add(0, 10, {100}).Add(0, 0, {100});
  job.rest.backward_ns = 10;
  job.rest.record = true;
  const Result result = Simulate(job.job(), [] { return std::make_unique<Waiter>(); });
  ASSERT_EQ(result.transfers[0].size(), 2u);
  for (const Transfer& transfer : result.transfers[0]) {
    EXPECT_EQ(transfer.sent_ns, transfer.ready_ns + 40);
  }
}

TEST(Simulation, Refusals) {
  OwnedJob good;
  good.Add(1, 1, {100});
  good.rest.backward_ns = 1;
  EXPECT_NO_THROW(Validate(good.job()));
  const auto refused = [&](const auto& spoil) {
    OwnedJob job = good;
    spoil(job);
    EXPECT_THROW(Validate(job.job()), std::invalid_argument);
  };
  refused([](OwnedJob& job) { job.rest.iterations = 0; });
  refused([](OwnedJob& job) { job.ready_ns[0] = 2; });
  refused([](OwnedJob& job) { job.ready_ns.push_back(0); });
  refused([](OwnedJob& job) { job.first_partition.back() = 2; });
  refused([](OwnedJob& job) { job.server[0] = 1; });
  refused([](OwnedJob& job) { job.size_bytes[0] = -1; });
  refused([](OwnedJob& job) { job.worker_bandwidth_bps[0] = 1; });
  refused([](OwnedJob& job) { job.worker_bandwidth_bps.clear(); });
  refused([](OwnedJob& job) { job.rest.message_cost_ns = -1; });
  refused([](OwnedJob& job) { job.rest.sum_threads = 0; });
  refused([](OwnedJob& job) { job.rest.delay_ns = int64_t{1} << 60; });
  refused([](OwnedJob& job) { job.rest.answer_by_priority = job.rest.stock_transport = true; });
}

}  // namespace
}  // namespace prophet::engine
