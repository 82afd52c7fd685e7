// What recording costs: nanoseconds per partition on its whole way, off and on, with an observer
// that takes at the same time, at the 1,600 partitions per iteration of ResNet-50 in pieces of 64
// KB. By hand: record_cost.
#include <atomic>
#include <chrono>
#include <iostream>
#include <thread>
#include <vector>

#include "native/plugin/clock.h"
#include "native/plugin/transfers.h"

namespace {

using byteprophet::NowNs;
using byteprophet::TransferRecorder;

constexpr uint64_t kPartitions = 1600;
constexpr uint32_t kIterations = 1000;

// As the gate and the queue call it: the time is there already but for `pulled`.
double PerPartitionNs(TransferRecorder& recorder) {
  const auto start = NowNs();
  for (uint32_t iteration = 0; iteration < kIterations; ++iteration) {
    const auto now = start + iteration;
    for (uint64_t key = 0; key < kPartitions; ++key)
      recorder.Ready({.key = key, .priority = -1, .bytes = 65536}, iteration, now);
    for (uint64_t key = kPartitions; key-- > 0;) {
      recorder.Sent(key, now);
      recorder.Acked(key, now);
      recorder.Pulled(key);
    }
  }
  return static_cast<double>(NowNs() - start) / (double{kIterations} * kPartitions);
}

}  // namespace

int main() {
  TransferRecorder recorder;
  std::cout << "off: " << PerPartitionNs(recorder) << " ns per partition" << std::endl;
  recorder.Record(1);
  std::atomic<bool> ended{false};
  std::thread observer([&] {
    std::vector<byteprophet::Transfer> some(4096);
    while (!ended) {
      while (recorder.Take(some.data(), 4096) == 4096) {
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  const double on = PerPartitionNs(recorder);
  ended = true;
  observer.join();
  std::cout << "on: " << on << " ns per partition, " << on * kPartitions / 1000
            << " us per iteration of " << kPartitions << ", " << recorder.lost() << " lost"
            << std::endl;
}
