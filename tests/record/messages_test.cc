// What ps-lite's messages leave, by themselves: which rows come, when, and what is lost. In real
// jobs: tests/observe/test_messages.py.
#include "messages.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "native/plugin/clock.h"

namespace byteprophet {
namespace {

void Pass(MessageRecorder& recorder, uint64_t key, uint32_t peer) {
  const int64_t begin = recorder.Begins();
  if (begin != 0) recorder.Ended({.begin_ns = begin, .key = key, .peer = peer});
}

std::vector<Message> TakeAll(MessageRecorder& recorder) {
  std::vector<Message> all(MessageRecorder::kRingRows);
  all.resize(static_cast<size_t>(recorder.Take(all.data(), static_cast<int>(all.size()))));
  return all;
}

TEST(Messages, ARowHasWhatItWasGivenAndItsTimes) {
  MessageRecorder recorder;
  recorder.Record(true);
  const int64_t before = NowNs();
  recorder.Ended({.begin_ns = recorder.Begins(),
                  .key = 7,
                  .size_bytes = 100,
                  .request = 3,
                  .peer = 1,
                  .what = Message::kAnswer,
                  .kind = Message::kReceive});
  const std::vector<Message> rows = TakeAll(recorder);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_GE(rows[0].begin_ns, before);
  EXPECT_GE(rows[0].end_ns, rows[0].begin_ns);
  EXPECT_LE(rows[0].end_ns, NowNs());
  EXPECT_EQ(rows[0].key, 7u);
  EXPECT_EQ(rows[0].size_bytes, 100u);
  EXPECT_EQ(rows[0].request, 3u);
  EXPECT_EQ(rows[0].peer, 1u);
  EXPECT_EQ(rows[0].what, Message::kAnswer);
  EXPECT_EQ(rows[0].kind, Message::kReceive);
  EXPECT_TRUE(TakeAll(recorder).empty());
}

TEST(Messages, WithoutRecordingNothing) {
  MessageRecorder recorder;
  EXPECT_EQ(recorder.Begins(), 0);
  recorder.Record(true);
  Pass(recorder, 1, 0);
  const int64_t begin = recorder.Begins();
  recorder.Record(false);
  EXPECT_EQ(recorder.Begins(), 0);
  recorder.Ended({.begin_ns = begin, .key = 2});  // it was under way
  EXPECT_EQ(TakeAll(recorder).size(), 2u);
  EXPECT_EQ(recorder.lost(), 0u);
}

TEST(Messages, TheOldestIsLostAndCounted) {
  MessageRecorder recorder;
  recorder.Record(true);
  constexpr size_t kMore = 5;
  for (uint64_t key = 0; key < MessageRecorder::kRingRows + kMore; ++key) Pass(recorder, key, 0);
  EXPECT_EQ(recorder.lost(), kMore);
  const std::vector<Message> rows = TakeAll(recorder);
  ASSERT_EQ(rows.size(), MessageRecorder::kRingRows);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i].key, i + kMore);
}

// Each thread's rows come once, in its order, and all of them in the order in which they ended.
TEST(Messages, FromAllThreadsAtOnce) {
  constexpr uint32_t kThreads = 4;
  constexpr uint64_t kEach = 5000;
  MessageRecorder recorder;
  recorder.Record(true);
  std::atomic<uint32_t> ended{0};
  std::vector<std::thread> threads;
  for (uint32_t peer = 0; peer < kThreads; ++peer) {
    threads.emplace_back([&recorder, &ended, peer] {
      for (uint64_t key = 0; key < kEach; ++key) Pass(recorder, key, peer);
      ++ended;
    });
  }
  std::vector<uint64_t> next(kThreads, 0);
  std::vector<Message> some(100);
  int64_t latest = 0;
  for (bool last = false;;) {
    const int count = recorder.Take(some.data(), static_cast<int>(some.size()));
    for (int i = 0; i < count; ++i) {
      const Message& row = some[static_cast<size_t>(i)];
      EXPECT_EQ(row.key, next[row.peer]++);
      EXPECT_GE(row.end_ns, latest);
      latest = row.end_ns;
    }
    if (count == 0 && last) break;
    last = ended == kThreads;
    if (count == 0) std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(next, std::vector<uint64_t>(kThreads, kEach));
  EXPECT_EQ(recorder.lost(), 0u);
}

}  // namespace
}  // namespace byteprophet
