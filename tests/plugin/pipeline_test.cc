// The plug-in in BytePS' real pipeline: EnqueueTensor from framework threads, BytePS' own loop
// threads for every stage but PUSH and PULL, SyncNccl, the compressors' pool, the thread that hands
// out acknowledgements and answers (fake_network.h), HandleManager and NextDone. Under every
// policy, over many iterations, with missing tensors, compressed tensors, changing priorities, and
// the queues deleted and made again at quiet points.
//
// Every partition passes every stage exactly once, or its bytes are wrong; per key in order;
// every operation is announced once; nothing is waited for longer than kLimit. Its way is recorded
// once and in order, while another thread takes what is recorded.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "byteps/common/core_loops.h"
#include "byteps/common/global.h"
#include "fake_network.h"
#include "framework.h"
#include "native/plugin/transfers.h"
#include "prophet/registry.h"
#include "tasks.h"

namespace byteprophet {
namespace {

using byteps::common::BytePSGlobal;

constexpr int kThreads = 4, kTensorsEach = 6, kIterations = 12;

std::string SocketDirectory() {
  static const std::string path = [] {
    std::string name = testing::TempDir() + "byteprophet-XXXXXX";
    return std::string(mkdtemp(name.data()));
  }();
  return path;
}

// As one of two workers, with three servers.
void SetEnvironment(const std::string& policy) {
  const std::vector<std::pair<const char*, std::string>> variables = {
      {"DMLC_ROLE", "worker"},
      {"DMLC_NUM_WORKER", "2"},
      {"DMLC_NUM_SERVER", std::to_string(kServers)},
      {"DMLC_WORKER_ID", "0"},
      {"BYTEPS_LOCAL_RANK", "0"},
      {"BYTEPS_LOCAL_SIZE", "1"},
      {"BYTEPS_THREADPOOL_SIZE", "3"},
      {"BYTEPS_PARTITION_BYTES", "4096"},
      {"BYTEPS_SCHEDULER", policy},
      {"BYTEPS_SOCKET_PATH", SocketDirectory()}};
  for (const auto& [name, value] : variables) setenv(name, value.c_str(), 1);
}

void StartBytePS() {
  BytePSGlobal::Init();
  BytePSGlobal::Start({FakeNetwork::PushLoop, FakeNetwork::PullLoop, byteps::common::DecompressLoop,
                       byteps::common::CopyDevice2HostLoop, byteps::common::CompressLoop,
                       byteps::common::RootCopyHost2DeviceLoop, byteps::common::SyncNcclLoop,
                       byteps::common::RootNcclLoop});
}

// BytePS' threads cannot be left running with what they work on gone.
void EndIf(const std::string& failure) {
  if (failure.empty()) return;
  std::cerr << "pipeline: " << failure << std::endl;
  std::_Exit(1);
}

class Pipeline : public testing::TestWithParam<std::string> {
 protected:
  static void TearDownTestSuite() { std::filesystem::remove_all(SocketDirectory()); }
};
INSTANTIATE_TEST_SUITE_P(EveryPolicy, Pipeline, testing::ValuesIn(prophet::PolicyNames()),
                         NameOfPolicy);

void Iterate(Framework& framework, int thread, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int> order;
  for (int n = 0; n < kTensorsEach; ++n) order.push_back(thread * kTensorsEach + n);
  for (int iteration = 0; iteration < kIterations && framework.failure().empty(); ++iteration) {
    std::shuffle(order.begin(), order.end(), random);
    for (const int tensor : order) {
      if (random() % 10 == 0) continue;  // missing this time
      const int priority = random() % 10 == 0 ? 0 : -1 - tensor;
      framework.Submit(tensor, priority);
    }
    for (const int tensor : order) framework.Wait(tensor);
  }
}

// Takes what is recorded from its construction to its end; as the observer does.
class Transfers {
 public:
  Transfers() : thread_([this] { Run(); }) { recorder_.Record(1); }
  // Each recorded push must have been made, once, its times in order.
  void End(size_t pushes) {
    ended_ = true;
    thread_.join();
    recorder_.Record(0);
    EXPECT_EQ(recorder_.lost(), 0u);
    EXPECT_EQ(taken_.size(), pushes);
    std::map<uint64_t, int64_t> pulled;
    for (const Transfer& transfer : taken_) {
      EXPECT_GT(transfer.size_bytes, 0u);
      EXPECT_LT(transfer.server, kServers);
      EXPECT_LE(pulled[transfer.key], transfer.ready_ns) << "of one key, one after the other";
      EXPECT_LE(transfer.ready_ns, transfer.sent_ns);
      EXPECT_LE(transfer.sent_ns, transfer.acked_ns);
      EXPECT_LE(transfer.acked_ns, transfer.pulled_ns);
      pulled[transfer.key] = transfer.pulled_ns;
    }
  }

 private:
  void Run() {
    for (bool last = false; !last;) {
      last = ended_;
      Transfer some[100];
      while (const int count = recorder_.Take(some, 100))
        taken_.insert(taken_.end(), some, some + count);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  TransferRecorder& recorder_ = TransferRecorder::Get();
  std::vector<Transfer> taken_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

TEST_P(Pipeline, EveryPartitionOnceThroughEveryStage) {
  FakeNetwork& network = FakeNetwork::Get();
  const uint64_t before = ScheduledPartitions();
  const size_t pushes_before = network.pushes();
  size_t operations = 0;
  Transfers transfers;
  for (uint64_t life = 1; life <= 2; ++life) {
    SetEnvironment(GetParam());
    StartBytePS();
    network.Start(life);
    Framework framework(kThreads * kTensorsEach, life);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back(
          [&, thread] { Iterate(framework, thread, 100 * life + static_cast<uint64_t>(thread)); });
    }
    for (std::thread& thread : threads) thread.join();
    EndIf(framework.failure());
    operations += framework.operations();
    network.Stop();
    EndIf(network.failure());
    BytePSGlobal::Shutdown();  // BytePS looks at a tensor's context after it said that it is done
  }
  EXPECT_GT(operations, static_cast<size_t>(kThreads * kTensorsEach * kIterations));
  EXPECT_EQ(ScheduledPartitions() - before, network.pushes() - pushes_before);
  transfers.End(network.pushes() - pushes_before);
}

}  // namespace
}  // namespace byteprophet
