// Stamps of an engine's operations, by themselves. In MXNet's engine: tests/mxnet/test_spans.py.
#include "native/plugin/stamps.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "native/plugin/clock.h"

namespace byteprophet {
namespace {

TEST(EngineStamps, AreHandedOutOnceInOrderOfTime) {
  EngineStamps stamps;
  const int64_t before = NowNs();
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&stamps, thread] {
      for (uint64_t i = 0; i < 1000; ++i) stamps.Stamp(thread << 32 | i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<EngineStamp> taken(5000);
  ASSERT_EQ(stamps.Take(taken.data(), 5000), 4000);
  std::vector<uint64_t> next(4, 0);
  int64_t latest = before;
  for (int i = 0; i < 4000; ++i) {
    const EngineStamp& stamp = taken[static_cast<size_t>(i)];
    EXPECT_EQ(stamp.number & 0xffffffff, next[stamp.number >> 32]++);
    EXPECT_GE(stamp.time_ns, latest);
    latest = stamp.time_ns;
  }
  EXPECT_LE(latest, NowNs());
  EXPECT_EQ(stamps.Take(taken.data(), 5000), 0);
}

}  // namespace
}  // namespace byteprophet
