// What queue operations and policy decisions cost with 100, 2,000 and 20,000 items pending.
//
// Turn/<policy>: the oldest message is acknowledged, an item becomes ready that goes before all
// that
//   is pending, and the policy is asked until it has nothing to send. After as many turns as there
//   are items pending an iteration begins, so what that costs is in it.
// Decide/<policy>: the policy is asked while it has nothing to send.
// Queues, Forecast: the parts.
//
// Keys are partitions of four to a tensor, over two servers.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "prophet/policy/forecast.h"
#include "prophet/policy/queues.h"
#include "prophet/registry.h"

namespace prophet {
namespace {

constexpr uint64_t kBytes = 65536;
constexpr TimeNs kTurnNs = 10'000;

Item ItemNumber(uint64_t number) {
  const uint64_t tensor = number / 4;
  return {.key = tensor << 16 | number % 4,
          .server = static_cast<uint32_t>(number % 2),
          .priority = -1 - static_cast<int32_t>(tensor),
          .bytes = kBytes};
}

// A policy with `count` items pending, which never get their turn, and as many that do, one after
// the other as in backward, the least urgent first. On a virtual clock.
class Worker {
 public:
  Worker(const std::string& policy, uint64_t count) : policy_(MakePolicy(policy)), count_(count) {
    for (uint64_t number = 2 * count; number-- > count;) policy_->OnReady(ItemNumber(number), now_);
    Send();
    // The bandwidth is known then, and every tensor expected.
    for (uint64_t turn = 0; turn < 2 * count; ++turn) Turn();
  }

  void Turn() {
    now_ += kTurnNs;
    if (!in_flight_.empty()) {
      policy_->OnAcked(in_flight_.front(), now_);
      in_flight_.pop_front();
    }
    if (next_ == 0) {
      policy_->OnIteration(now_);
      next_ = count_;
    }
    policy_->OnReady(ItemNumber(--next_), now_);
    Send();
  }

  Decision Ask() { return policy_->Next(now_); }

 private:
  void Send() {
    for (;;) {
      const Decision decision = policy_->Next(now_);
      if (decision.kind != Decision::Kind::kSend) return;
      in_flight_.push_back(decision.item);
    }
  }

  const std::unique_ptr<Policy> policy_;
  const uint64_t count_;
  uint64_t next_ = 0;  // one more than the next item's number; 0: an iteration begins
  TimeNs now_ = 0;
  std::deque<Item> in_flight_;
};

void Turn(benchmark::State& state, const std::string& policy) {
  Worker worker(policy, static_cast<uint64_t>(state.range(0)));
  for ([[maybe_unused]] auto _ : state) worker.Turn();
}

void Decide(benchmark::State& state, const std::string& policy) {
  Worker worker(policy, static_cast<uint64_t>(state.range(0)));
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(worker.Ask());
}

void QueuesAddTakeAck(benchmark::State& state) {
  const auto count = static_cast<uint64_t>(state.range(0));
  const auto add = [](Queues& queues, const Item& item) { queues.Add(item, RankByPriority(item)); };
  Queues queues;
  for (uint64_t number = 0; number < count; ++number) add(queues, ItemNumber(number));
  for ([[maybe_unused]] auto _ : state) {
    const auto item = queues.TakeFirst([](const Item&, const ServerLoad&) { return true; });
    queues.Ack(item->key);
    add(queues, *item);
  }
}

// Every tensor once, then the next iteration; after each the question that a policy asks.
void ForecastReadyAndNext(benchmark::State& state) {
  const auto count = static_cast<uint64_t>(state.range(0));
  ReadyForecast forecast;
  TimeNs now = 0;
  uint64_t number = count;
  for ([[maybe_unused]] auto _ : state) {
    if (number == 0) {
      forecast.OnIteration();
      number = count;
    }
    const Item item = ItemNumber(--number);
    forecast.OnReady(item.key, item.priority, now += kTurnNs);
    benchmark::DoNotOptimize(forecast.NextAbove(item.priority));
  }
}

benchmark::internal::Benchmark* BySize(benchmark::internal::Benchmark* benchmark) {
  return benchmark->Arg(100)->Arg(2000)->Arg(20000);
}

const bool registered = [] {
  BySize(benchmark::RegisterBenchmark("Queues", QueuesAddTakeAck));
  BySize(benchmark::RegisterBenchmark("Forecast", ForecastReadyAndNext));
  for (const std::string& name : PolicyNames()) {
    BySize(benchmark::RegisterBenchmark(("Turn/" + name).c_str(),
                                        [name](benchmark::State& state) { Turn(state, name); }));
    BySize(benchmark::RegisterBenchmark(("Decide/" + name).c_str(),
                                        [name](benchmark::State& state) { Decide(state, name); }));
  }
  return true;
}();

}  // namespace
}  // namespace prophet
