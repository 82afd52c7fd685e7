// What recording costs: one partition's whole way, on a thread by itself, at the 1,600 partitions
// per iteration of ResNet-50 in pieces of 64 KB, while nobody takes rows.
//
// Served/0: the server's record (native/byteps/record) is off; Served/1: on. Messages: ps-lite's,
// four per partition, each with the copy of its last part that waits for the kernel.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>

#include "native/byteps/record/messages.h"
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

void SendOne(benchmark::State& state) {
  MessageRecorder recorder;
  recorder.Record(state.range(0) != 0);
  uint64_t key = 0;
  for (auto _ : state) {
    ++key;
    for (int message = 0; message < 4; ++message) {
      const int64_t begin_ns = recorder.Begins();
      if (begin_ns == 0) continue;
      const Message row = {.begin_ns = begin_ns, .key = key};
      std::shared_ptr<char>(nullptr, [&recorder, row](char*) { recorder.Ended(row); });
    }
  }
}
BENCHMARK(SendOne)->Name("Messages")->Arg(0)->Arg(1);

}  // namespace
}  // namespace byteprophet
