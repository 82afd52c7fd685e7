// A worker of a real job without Python: what byteps.torch does, in C++, on BytePS' core with the
// plug-in in front. Each worker pushes numbers of its own, so that a sum tells who is missing from
// it, or in it twice.
//
//   job_worker ITERATIONS [abandon | suspend | repartition | leave]
//
// With `abandon` it shuts down with operations under way, as a script does that fails; with
// `suspend` it suspends and resumes after half of the iterations; with `repartition` tensors have
// another partition size in each iteration, and neighbours never the same; with `leave` worker 1
// ends after half of the iterations, and the other one's next iteration must fail. Its messages are
// recorded.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "byteps/common/operations.h"
#include "byteps/torch/handle_manager.h"
#include "native/byteps/heartbeat/push_pulls.h"
#include "native/byteps/record/messages.h"
#include "native/plugin/plugin.h"
#include "tests/plugin/record_taker.h"

namespace byteps {
namespace common {
extern "C" unsigned int byteps_repartition(const char* name, unsigned int bytes);
}
}  // namespace byteps

namespace {

namespace common = byteps::common;
using common::byteps_init;
using common::byteps_rank;
using common::byteps_shutdown;
using common::byteps_size;

constexpr int kTensors = 20;
constexpr std::chrono::seconds kLimit{120};

class FloatTensor : public common::Tensor {
 public:
  explicit FloatTensor(size_t count) : values(count) {}
  const common::DataType dtype() const override { return common::BYTEPS_FLOAT32; }
  const common::TensorShape shape() const override {
    common::TensorShape shape;
    shape.AddDim(static_cast<int64_t>(values.size()));
    return shape;
  }
  const void* data() const override { return values.data(); }
  int64_t size() const override { return static_cast<int64_t>(values.size() * sizeof(float)); }

  std::vector<float> values;
};

[[noreturn]] void Fail(const std::string& what) {
  std::cerr << "job_worker " << byteps_rank() << ": " << what << std::endl;
  std::_Exit(1);
}

std::string Name(int tensor) { return "byteps.tensor" + std::to_string(tensor); }

// Whole numbers, so that sums are exact.
float Value(int worker, int iteration, int tensor, size_t index) {
  return static_cast<float>((worker + 1) * 1000 + iteration * 7 + tensor) +
         static_cast<float>(index % 13);
}

class Worker {
 public:
  Worker() {
    for (int tensor = 0; tensor < kTensors; ++tensor) common::IsTensorDeclared(Name(tensor));
    // From one number to several partitions.
    for (int tensor = 0; tensor < kTensors; ++tensor)
      tensors_.push_back(std::make_shared<FloatTensor>(1 + static_cast<size_t>(tensor) * 737));
  }

  void Submit(int iteration, int tensor) {
    FloatTensor& data = *tensors_[static_cast<size_t>(tensor)];
    for (size_t i = 0; i < data.values.size(); ++i)
      data.values[i] = Value(byteps_rank(), iteration, tensor, i);
    const int handle = handles_.AllocateHandle();
    waiting_[handle] = tensor;
    push_pulls_.Begin(static_cast<uint64_t>(handle), [this, handle](const std::string& why) {
      handles_.MarkDone(handle, common::Status::Aborted(why));
    });
    auto& context = common::GetContextFromName(Name(tensor));
    context.partitioning.Begin();
    common::InitTensor(context, static_cast<size_t>(data.size()), data.dtype(), data.values.data());
    auto stages = common::GetPushQueueList(CPU_DEVICE_ID);
    const auto pull = common::GetPullQueueList(CPU_DEVICE_ID);
    stages->insert(stages->end(), pull->begin(), pull->end());
    common::EnqueueTensor(
        context, tensors_[static_cast<size_t>(tensor)], tensors_[static_cast<size_t>(tensor)],
        nullptr, CPU_DEVICE_ID, -1 - tensor, iteration,
        [this, handle](const common::Status& status) {
          if (push_pulls_.End(static_cast<uint64_t>(handle))) handles_.MarkDone(handle, status);
        },
        stages);
  }

  // Prepares a tensor that no other worker has, in a thread as byteps.torch's: that gives up.
  std::thread PrepareAlone() {
    common::IsTensorDeclared(Name(kTensors));
    return std::thread([this] {
      const byteprophet::Preparation preparation;
      auto& context = common::GetContextFromName(Name(kTensors));
      if (common::InitTensor(context, sizeof(float), common::BYTEPS_FLOAT32, &alone_))
        Fail("a tensor of one worker was prepared");
    });
  }

  // Of these operations worker 1 has no part: they fail, and no other does.
  void ExpectFailures() { fails_ = true; }

  void Repartition(int iteration) {
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      const auto pages = static_cast<unsigned int>(1 + (iteration * 5 + tensor * 3) % 7);
      common::byteps_repartition(Name(tensor).c_str(), pages * 4096);
    }
  }

  void Finish(int iteration) {
    const auto start = std::chrono::steady_clock::now();
    while (!waiting_.empty()) {
      if (std::chrono::steady_clock::now() - start > kLimit) {
        std::string names;
        for (const auto& [handle, tensor] : waiting_) names += " " + Name(tensor);
        Fail("iteration " + std::to_string(iteration) + " is still waiting for" + names);
      }
      int handles[4];
      const int count = byteprophet::NextDone(std::chrono::milliseconds(100), handles, 4);
      for (int i = 0; i < count; ++i) Check(iteration, handles[i]);
    }
  }

 private:
  void Check(int iteration, int handle) {
    const auto found = waiting_.find(handle);
    if (found == waiting_.end()) Fail("announced twice, or never submitted");
    const int tensor = found->second;
    waiting_.erase(found);
    const auto status = handles_.ReleaseHandle(handle);
    if (status->ok() == fails_) Fail("an operation " + (fails_ ? "succeeded" : status->reason()));
    if (fails_ && status->reason().find("worker-1 ") == std::string::npos) Fail(status->reason());
    if (fails_) return;
    const std::vector<float>& values = tensors_[static_cast<size_t>(tensor)]->values;
    for (size_t i = 0; i < values.size(); ++i) {
      float sum = 0;
      for (int worker = 0; worker < byteps_size(); ++worker)
        sum += Value(worker, iteration, tensor, i);
      if (values[i] != sum)
        Fail("wrong sum in " + Name(tensor) + ", iteration " + std::to_string(iteration));
    }
  }

  std::vector<std::shared_ptr<FloatTensor>> tensors_;
  byteprophet::PushPulls& push_pulls_ = byteprophet::PushPulls::OfProcess();
  byteps::torch::HandleManager handles_;
  std::map<int, int> waiting_;  // handle to tensor
  float alone_ = 0;
  bool fails_ = false;
};

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) return 2;
  const int iterations = std::atoi(arguments[1]);
  const std::string mode = count > 2 ? arguments[2] : "";
  byteps_record_messages(1);
  const byteprophet::RecordTaker<byteprophet::Message> messages(byteps_take_messages);
  byteps_init();
  Worker worker;
  int first = 0;  // iteration since the last start
  for (int iteration = 0; iteration < iterations; ++iteration) {
    // Backward's order. The workers do not agree on it, but for the first iteration: InitTensor
    // waits for the others.
    const int turn = byteps_rank() * (iteration - first);
    for (int n = kTensors; n-- > 0;) worker.Submit(iteration, (n + turn) % kTensors);
    if (mode == "leave" && iteration == iterations / 2) {
      worker.ExpectFailures();
      std::thread alone = worker.PrepareAlone();
      worker.Finish(iteration);
      alone.join();
      break;
    }
    if (mode == "abandon" && iteration + 1 == iterations) break;
    worker.Finish(iteration);
    byteprophet::OnIteration();
    if (mode == "leave" && byteps_rank() == 1 && iteration + 1 == iterations / 2) break;
    if (mode == "repartition") worker.Repartition(iteration);
    if (mode == "suspend" && iteration == iterations / 2) {
      first = iteration + 1;
      common::byteps_suspend();
      common::byteps_resume(std::atoi(std::getenv("DMLC_NUM_WORKER")),
                            std::atoi(std::getenv("DMLC_NUM_SERVER")));
    }
  }
  byteps_shutdown();
  std::cout << "job_worker: " << iterations * kTensors << " operations" << std::endl;
}
