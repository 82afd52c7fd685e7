// The recorder of transfers by itself: what is handed out, when, how often, and what is lost. In
// the pipeline: pipeline_test.cc.
#include "native/plugin/transfers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace byteprophet {
namespace {

prophet::Item ItemOf(uint64_t key) {
  return {.key = key, .server = 1, .priority = -2, .bytes = 100 + key};
}

void Pass(TransferRecorder& recorder, uint64_t key, uint32_t iteration, prophet::TimeNs ready) {
  recorder.Ready(ItemOf(key), iteration, ready);
  recorder.Sent(key, ready + 1);
  recorder.Acked(key, ready + 2);
  recorder.Pulled(key);
}

std::vector<Transfer> TakeAll(TransferRecorder& recorder) {
  std::vector<Transfer> all(2 * TransferRecorder::kRingTransfers);
  all.resize(static_cast<size_t>(recorder.Take(all.data(), static_cast<int>(all.size()))));
  return all;
}

TEST(Transfers, HandedOutOnceCompleteAndInOrder) {
  TransferRecorder recorder;
  recorder.Record(1);
  recorder.Ready(ItemOf(7), 3, 10);
  recorder.Sent(7, 20);
  Pass(recorder, 8, 3, 30);
  recorder.Acked(7, 40);
  recorder.Pulled(7);
  recorder.Pulled(7);  // moves on through later stages
  const std::vector<Transfer> taken = TakeAll(recorder);
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].key, 8u);
  EXPECT_EQ(taken[1].key, 7u);
  EXPECT_EQ(taken[1].size_bytes, 107u);
  EXPECT_EQ(taken[1].ready_ns, 10);
  EXPECT_EQ(taken[1].sent_ns, 20);
  EXPECT_EQ(taken[1].acked_ns, 40);
  EXPECT_GT(taken[1].pulled_ns, 40);
  EXPECT_EQ(taken[1].server, 1u);
  EXPECT_EQ(taken[1].iteration, 3u);
  EXPECT_EQ(taken[1].priority, -2);
  EXPECT_TRUE(TakeAll(recorder).empty());
  EXPECT_EQ(recorder.lost(), 0u);
}

TEST(Transfers, OnlyWhatWasSeenFromTheStartIsRecorded) {
  TransferRecorder recorder;
  Pass(recorder, 1, 1, 10);  // not recording
  recorder.Ready(ItemOf(2), 1, 10);
  recorder.Record(1);
  recorder.Sent(2, 20);
  recorder.Acked(2, 30);
  recorder.Pulled(2);
  recorder.Ready(ItemOf(3), 1, 10);
  recorder.Pulled(3);  // of an earlier push: this one was not even sent
  recorder.Record(0);
  recorder.Record(1);
  recorder.Acked(3, 40);
  recorder.Pulled(3);
  EXPECT_TRUE(TakeAll(recorder).empty());
}

TEST(Transfers, EveryNthIteration) {
  TransferRecorder recorder;
  recorder.Record(4);
  for (uint32_t iteration = 0; iteration < 12; ++iteration)
    Pass(recorder, 1, iteration, 10 * iteration + 1);
  const std::vector<Transfer> taken = TakeAll(recorder);
  ASSERT_EQ(taken.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(taken[i].iteration, 4 * i);
}

std::vector<uint32_t> RoundsTaken(TransferRecorder& recorder) {
  std::vector<uint32_t> rounds;
  for (const Transfer& transfer : TakeAll(recorder)) rounds.push_back(transfer.round);
  return rounds;
}

TEST(Transfers, RoundsCountPerKeyFromWhenTheQueuesBegan) {
  TransferRecorder recorder;
  recorder.Record(1);
  for (const uint64_t key : {1, 2, 1, 1, 2}) Pass(recorder, key, 1, 10);
  EXPECT_EQ(RoundsTaken(recorder), (std::vector<uint32_t>{1, 1, 2, 3, 2}));
  recorder.Ready(ItemOf(1), 2, 10);  // its task goes on without passing PULL
  recorder.Acked(1, 20);
  Pass(recorder, 1, 2, 30);
  EXPECT_EQ(RoundsTaken(recorder), std::vector<uint32_t>{5});
  recorder.Record(0);
  recorder.Record(1);  // nothing was missed
  Pass(recorder, 1, 3, 40);
  EXPECT_EQ(RoundsTaken(recorder), std::vector<uint32_t>{6});
  recorder.Forget();
  Pass(recorder, 1, 4, 50);
  EXPECT_EQ(RoundsTaken(recorder), std::vector<uint32_t>{1});
}

TEST(Transfers, NoRoundIsKnownWhereOneMayHaveBeenMissed) {
  TransferRecorder recorder;
  Pass(recorder, 1, 1, 10);
  recorder.Record(1);
  Pass(recorder, 1, 2, 20);
  EXPECT_EQ(RoundsTaken(recorder), std::vector<uint32_t>{0});
  recorder.Forget();
  recorder.Record(2);
  for (const uint32_t iteration : {0, 1, 2}) Pass(recorder, 1, iteration, 30);
  EXPECT_EQ(RoundsTaken(recorder), (std::vector<uint32_t>{1, 0}));
}

TEST(Transfers, TheOldestIsLostAndCounted) {
  TransferRecorder recorder;
  recorder.Record(1);
  constexpr size_t kMore = 5;
  for (uint64_t key = 0; key < TransferRecorder::kRingTransfers + kMore; ++key)
    Pass(recorder, key, 1, 10);
  EXPECT_EQ(recorder.lost(), kMore);
  const std::vector<Transfer> taken = TakeAll(recorder);
  ASSERT_EQ(taken.size(), TransferRecorder::kRingTransfers);
  for (size_t i = 0; i < taken.size(); ++i) EXPECT_EQ(taken[i].key, i + kMore);
}

TEST(Transfers, TakenInPieces) {
  TransferRecorder recorder;
  recorder.Record(1);
  constexpr uint64_t kCount = 1000;
  std::atomic<bool> ended{false};
  std::vector<uint64_t> keys;
  std::thread taking([&] {
    Transfer some[7];
    for (bool last = false;;) {
      const int count = recorder.Take(some, 7);
      for (int i = 0; i < count; ++i) keys.push_back(some[i].key);
      if (count == 0 && last) return;
      last = ended.load();
    }
  });
  for (uint64_t key = 0; key < kCount; ++key) Pass(recorder, key, 1, 10);
  ended = true;
  taking.join();
  ASSERT_EQ(keys.size(), kCount);
  for (uint64_t key = 0; key < kCount; ++key) EXPECT_EQ(keys[key], key);
}

}  // namespace
}  // namespace byteprophet
