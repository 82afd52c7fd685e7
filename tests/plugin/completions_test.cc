// Handles are announced once each, whoever marks them and whenever they are asked for.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "byteps/torch/handle_manager.h"
#include "native/plugin/plugin.h"

namespace byteprophet {
namespace {

using std::chrono::milliseconds;

TEST(Completions, EveryHandleOnceFromManyThreads) {
  constexpr int kThreads = 4, kHandles = 2000;
  byteps::torch::HandleManager manager;
  std::vector<std::thread> loops;
  for (int i = 0; i < kThreads; ++i) {
    loops.emplace_back([&manager] {
      for (int n = 0; n < kHandles; ++n)
        manager.MarkDone(manager.AllocateHandle(), byteps::common::Status::OK());
    });
  }
  std::vector<int> times(kThreads * kHandles + 1);
  int seen = 0;
  int handles[64];
  for (int idle = 0; seen < kThreads * kHandles && idle < 100;) {
    const int count = NextDone(milliseconds(100), handles, 64);
    idle = count == 0 ? idle + 1 : 0;
    for (int i = 0; i < count; ++i) {
      EXPECT_TRUE(manager.PollHandle(handles[i]));
      EXPECT_NE(manager.ReleaseHandle(handles[i]), nullptr);
      ++times.at(static_cast<size_t>(handles[i]));
    }
    seen += count;
  }
  for (std::thread& loop : loops) loop.join();
  EXPECT_EQ(seen, kThreads * kHandles);
  EXPECT_EQ(times, [&] {
    std::vector<int> once(times.size(), 1);
    once[0] = 0;
    return once;
  }());
  EXPECT_EQ(NextDone(milliseconds(0), handles, 64), 0);
}

TEST(Completions, NoRoomTakesNothing) {
  byteps::torch::HandleManager manager;
  manager.MarkDone(manager.AllocateHandle(), byteps::common::Status::OK());
  int handle = 0;
  EXPECT_EQ(NextDone(milliseconds(1000), &handle, 0), 0);
  EXPECT_EQ(NextDone(milliseconds(1000), &handle, 1), 1);
  EXPECT_EQ(handle, 1);
}

}  // namespace
}  // namespace byteprophet
