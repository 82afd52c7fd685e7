// What recording costs: one partition's whole way, on a thread by itself, at the 1,600 partitions
// per iteration of ResNet-50 in pieces of 64 KB, while nobody takes rows.
//
// Served/0: the server's record (native/byteps/record) is off; Served/1: on.
#include <benchmark/benchmark.h>

#include <cstdint>

#include "native/byteps/record/served.h"

namespace byteprophet {
namespace {

void ServeOne(benchmark::State& state) {
  constexpr uint64_t kPartitions = 1600;
  ServedRecorder recorder;
  recorder.Record(state.range(0) != 0);
  uint64_t key = 0;
  for (auto _ : state) {
    key = (key + 1) % kPartitions;
    recorder.Arrived(key, 0, 65536);
    recorder.Summed(key, 0, recorder.SumBegins());
    recorder.Asked(key, 0);
    recorder.Answered(key, 0);
  }
}
BENCHMARK(ServeOne)->Name("Served")->Arg(0)->Arg(1);

}  // namespace
}  // namespace byteprophet
