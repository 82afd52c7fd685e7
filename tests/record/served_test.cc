// What servers record, by itself: which rows come, when, and what is lost. In real jobs:
// tests/observe/test_server.py.
#include "served.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>
#include <utility>
#include <vector>

namespace byteprophet {
namespace {

constexpr uint64_t kBytes = 1000;

void Serve(ServedRecorder& recorder, uint64_t key, uint32_t worker) {
  recorder.Arrived(key, worker, kBytes + key);
  const int64_t begin = recorder.SumBegins();
  recorder.Summed(key, worker, begin);
  recorder.Asked(key, worker);
  recorder.Answered(key, worker);
}

std::vector<Served> TakeAll(ServedRecorder& recorder) {
  std::vector<Served> all(ServedRecorder::kRingRows);
  all.resize(static_cast<size_t>(recorder.Take(all.data(), static_cast<int>(all.size()))));
  return all;
}

void ExpectOrder(const Served& row) {
  EXPECT_GT(row.arrived_ns, 0);
  EXPECT_LE(row.arrived_ns, row.sum_begin_ns);
  EXPECT_LE(row.sum_begin_ns, row.sum_end_ns);
  EXPECT_LE(row.sum_end_ns, row.answered_ns);
  EXPECT_LE(row.arrived_ns, row.asked_ns);
  EXPECT_LE(row.asked_ns, row.answered_ns);
}

TEST(Served, ARowIsCompleteWithItsAnswer) {
  ServedRecorder recorder;
  recorder.Record(true);
  recorder.Arrived(7, 0, 10);
  recorder.Arrived(7, 1, 20);
  recorder.Asked(7, 1);
  const int64_t begin = recorder.SumBegins();
  recorder.Summed(7, 1, begin);
  recorder.Summed(7, 0, begin);  // in one pass
  recorder.Answered(7, 1);
  recorder.Asked(7, 0);
  std::vector<Served> rows = TakeAll(recorder);
  ASSERT_EQ(rows.size(), 1u);
  ExpectOrder(rows[0]);
  EXPECT_EQ(rows[0].key, 7u);
  EXPECT_EQ(rows[0].worker, 1u);
  EXPECT_EQ(rows[0].size_bytes, 20u);
  EXPECT_EQ(rows[0].round, 1u);
  EXPECT_EQ(rows[0].sum_begin_ns, begin);
  recorder.Answered(7, 0);
  rows = TakeAll(recorder);
  ASSERT_EQ(rows.size(), 1u);
  ExpectOrder(rows[0]);
  EXPECT_EQ(rows[0].worker, 0u);
  EXPECT_EQ(rows[0].size_bytes, 10u);
  EXPECT_EQ(rows[0].sum_begin_ns, begin);
  EXPECT_EQ(recorder.lost(), 0u);
}

TEST(Served, RoundsCountPerKeyAndWorker) {
  ServedRecorder recorder;
  recorder.Record(true);
  for (const auto& [key, worker] : {std::pair{1, 0}, {1, 3}, {2, 0}, {1, 0}, {2, 0}, {1, 0}})
    Serve(recorder, static_cast<uint64_t>(key), static_cast<uint32_t>(worker));
  std::vector<uint32_t> rounds;
  for (const Served& row : TakeAll(recorder)) rounds.push_back(row.round);
  EXPECT_EQ(rounds, (std::vector<uint32_t>{1, 1, 1, 2, 2, 3}));
}

TEST(Served, WithoutRecordingNothing) {
  ServedRecorder recorder;
  Serve(recorder, 1, 0);
  EXPECT_EQ(recorder.SumBegins(), 0);
  recorder.Arrived(2, 0, kBytes);
  recorder.Record(true);
  recorder.Asked(2, 0);  // its push was not seen
  recorder.Answered(2, 0);
  EXPECT_TRUE(TakeAll(recorder).empty());
  Serve(recorder, 3, 0);
  recorder.Record(false);
  Serve(recorder, 3, 0);
  EXPECT_EQ(TakeAll(recorder).size(), 1u);
  EXPECT_EQ(recorder.lost(), 0u);
}

TEST(Served, NoTimeOfTheRoundBefore) {
  ServedRecorder recorder;
  recorder.Record(true);
  Serve(recorder, 1, 0);
  recorder.Answered(1, 0);  // there is nothing to answer
  recorder.Arrived(1, 0, kBytes);
  recorder.Answered(1, 0);
  const std::vector<Served> rows = TakeAll(recorder);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].round, 2u);
  EXPECT_EQ(rows[1].sum_begin_ns, 0);
  EXPECT_EQ(rows[1].sum_end_ns, 0);
  EXPECT_EQ(rows[1].asked_ns, 0);
}

TEST(Served, LostOnesAreCounted) {
  ServedRecorder recorder;
  recorder.Record(true);
  recorder.Arrived(1, 0, kBytes);
  Serve(recorder, 1, 0);  // the first was never answered
  EXPECT_EQ(recorder.lost(), 1u);
  for (size_t i = 0; i < ServedRecorder::kRingRows + 9; ++i) Serve(recorder, 1, 0);
  EXPECT_EQ(recorder.lost(), 1u + 10u);
  const std::vector<Served> rows = TakeAll(recorder);
  EXPECT_EQ(rows.size(), ServedRecorder::kRingRows);
  EXPECT_EQ(rows.back().round, ServedRecorder::kRingRows + 11);
}

// As in a server: one thread has the requests, another sums and answers, a third answers what had
// to wait, and rows are taken all the while. Every row comes once, in order, with its own times.
TEST(Served, FromAllThreadsAtOnce) {
  constexpr uint64_t kKeys = 64;
  constexpr uint32_t kRounds = 200, kWorkers = 3;
  ServedRecorder recorder;
  recorder.Record(true);
  // How many rounds of each key the next thread may go about.
  std::vector<std::atomic<uint32_t>> requested(kKeys), summed(kKeys), answered(kKeys);
  const auto each = [&](auto&& wait_for, auto&& handle, auto& done) {
    for (uint32_t round = 1; round <= kRounds; ++round) {
      for (uint64_t key = 0; key < kKeys; ++key) {
        while (!wait_for(key, round)) std::this_thread::yield();
        for (uint32_t worker = 0; worker < kWorkers; ++worker) handle(key, worker);
        done[key] = round;
      }
    }
  };
  std::thread handler([&] {
    each([&](uint64_t key, uint32_t round) { return answered[key] + 1 >= round; },
         [&](uint64_t key, uint32_t worker) {
           recorder.Arrived(key, worker, kBytes + key);
           recorder.Asked(key, worker);
         },
         requested);
  });
  std::thread engine([&] {
    each([&](uint64_t key, uint32_t round) { return requested[key] >= round; },
         [&](uint64_t key, uint32_t worker) {
           recorder.Summed(key, worker, recorder.SumBegins());
           if (worker == 0) recorder.Answered(key, worker);
         },
         summed);
  });
  std::thread sender([&] {
    each([&](uint64_t key, uint32_t round) { return summed[key] >= round; },
         [&](uint64_t key, uint32_t worker) {
           if (worker != 0) recorder.Answered(key, worker);
         },
         answered);
  });
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> rounds;
  std::vector<Served> some(100);
  for (size_t taken = 0; taken < size_t{kKeys} * kRounds * kWorkers;) {
    const int count = recorder.Take(some.data(), static_cast<int>(some.size()));
    if (count == 0) std::this_thread::yield();
    taken += static_cast<size_t>(count);
    for (int i = 0; i < count; ++i) {
      const Served& row = some[static_cast<size_t>(i)];
      ExpectOrder(row);
      EXPECT_EQ(row.size_bytes, kBytes + row.key);
      EXPECT_EQ(row.round, ++rounds[std::pair(row.key, row.worker)]);
    }
  }
  handler.join();
  engine.join();
  sender.join();
  EXPECT_TRUE(TakeAll(recorder).empty());
  EXPECT_EQ(recorder.lost(), 0u);
  EXPECT_EQ(rounds.size(), kKeys * kWorkers);
}

}  // namespace
}  // namespace byteprophet
