// Stands in for a framework's plug-in: tensors on the CPU that its threads push_pull in place, and
// the thread that waits for operations to finish.
//
// Threads. Submit() and Wait(): of a tensor, one thread. The waiting thread calls NextDone, as
// byteprophet.torch's does. One mutex guards the operations; BytePS is called without it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "byteps/common/common.h"
#include "byteps/torch/handle_manager.h"

extern "C" uint64_t byteprophet_scheduled_partitions();

namespace byteprophet {

inline uint64_t ScheduledPartitions() { return byteprophet_scheduled_partitions(); }

class Framework {
 public:
  // How long any wait may last before it is a failure that says what is outstanding.
  static constexpr std::chrono::seconds kLimit{60};

  // Sizes from one byte to several partitions; every fourth tensor is compressed.
  Framework(int tensors, uint64_t seed);
  ~Framework();

  void Submit(int tensor, int priority);
  // Until all operations of this tensor are done; checks what came back.
  void Wait(int tensor);

  size_t operations() const { return operations_; }
  std::string failure();

 private:
  struct Operation {
    std::vector<uint8_t> sent;
    std::shared_ptr<std::vector<uint8_t>> data;  // the tensor, in place
    std::shared_ptr<std::vector<uint8_t>> staging;
  };
  struct Tensor {
    byteps::common::BPSContext context;
    size_t size = 0;
    int version = 0;
    std::mt19937_64 random;
    std::map<int, Operation> operations;  // by handle; guarded by mutex_
  };

  void Declare(Tensor& tensor, uint64_t number, bool compress);
  void WaitForDone();
  void Fail(const std::string& what);  // REQUIRES: mutex_ is held

  std::vector<std::unique_ptr<Tensor>> tensors_;
  byteps::torch::HandleManager handles_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, int> announced_;  // by handle: how often
  std::string failure_;
  std::atomic<size_t> operations_{0};
  std::atomic<bool> ending_{false};
  std::thread waiting_;
};

}  // namespace byteprophet
