// How fast graphs of a million operations are replayed: items_per_second are operations.
//
// Chains:    64 serial devices with a chain each, which now and then waits for a neighbour's.
// ForkJoin:  one operation, 98 in parallel on devices of four units, one that joins them; again.
// Flows:     48 connections over 16 links out and 16 links in, all joined by those that they share.
//            On each, a flow takes the place of the one before.
// Mix:       these three in one graph, a third each.
// Training:  iterations of 8 workers of 50 tensors on 2 servers: compute, pushes, sums, pulls.
//            Every flow changes the rates of others.
// Training/<policy>: the same, each worker's pushes behind a policy.
#include "prophet/graph/graph.h"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>

#include "graph_parts.h"
#include "prophet/registry.h"

namespace prophet::graph {
namespace {

constexpr int64_t kOperations = 1'000'000;

void Measure(benchmark::State& state, Builder& builder, const std::string& policy = "fifo") {
  const Graph graph = builder.Freeze();
  for ([[maybe_unused]] auto _ : state) {
    benchmark::DoNotOptimize(
        Replay(graph, [&](size_t /*gate*/) { return MakePolicy(policy); }).makespan_ns);
  }
  state.SetItemsProcessed(state.iterations() * builder.size());
}

template <typename Part>
void One(benchmark::State& state) {
  Builder builder;
  Part part(builder);
  while (builder.size() < kOperations) part.Add();
  Measure(state, builder);
}

void Mix(benchmark::State& state) {
  Builder builder;
  Chains chains(builder);
  ForkJoin fork_join(builder);
  Flows flows(builder);
  while (builder.size() < kOperations) {
    for (int i = 0; i < 9; ++i) chains.Add();
    for (int i = 0; i < 6; ++i) fork_join.Add();
    for (int i = 0; i < 4; ++i) flows.Add();
  }
  Measure(state, builder);
}

void Iterations(benchmark::State& state, const std::string& policy) {
  Builder builder;
  Training training(builder, !policy.empty());
  while (builder.size() < kOperations) training.Add();
  Measure(state, builder, policy);
}

BENCHMARK(One<Chains>)->Name("Replay/Chains")->Unit(benchmark::kMillisecond);
BENCHMARK(One<ForkJoin>)->Name("Replay/ForkJoin")->Unit(benchmark::kMillisecond);
BENCHMARK(One<Flows>)->Name("Replay/Flows")->Unit(benchmark::kMillisecond);
BENCHMARK(Mix)->Name("Replay/Mix")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Iterations, None, "")->Name("Replay/Training")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Iterations, Fifo, "fifo")
    ->Name("Replay/Training/fifo")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Iterations, Prophet, "prophet")
    ->Name("Replay/Training/prophet")
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace prophet::graph
