#include "framework.h"

#include <algorithm>
#include <utility>

#include "byteps/common/compressor/compressor.h"
#include "byteps/common/global.h"
#include "byteps/common/operations.h"
#include "fake_network.h"
#include "native/plugin/plugin.h"
#include "tasks.h"

namespace byteprophet {
namespace {

using byteps::common::BytePSGlobal;
using Bytes = std::shared_ptr<std::vector<uint8_t>>;

class ByteTensor : public byteps::common::Tensor {
 public:
  explicit ByteTensor(Bytes bytes) : bytes_(std::move(bytes)) {}
  const byteps::common::DataType dtype() const override { return byteps::common::BYTEPS_UINT8; }
  const byteps::common::TensorShape shape() const override {
    byteps::common::TensorShape shape;
    shape.AddDim(size());
    return shape;
  }
  const void* data() const override { return bytes_->data(); }
  int64_t size() const override { return static_cast<int64_t>(bytes_->size()); }

 private:
  const Bytes bytes_;
};

// A compressor that keeps the bytes as they are, in a buffer of its own, as real ones have.
class Copy : public byteps::common::compressor::Compressor {
 public:
  explicit Copy(size_t size) : Compressor(size, byteps::common::BYTEPS_UINT8) {}
  byteps::common::compressor::tensor_t Compress(
      byteps::common::compressor::tensor_t data) override {
    std::copy_n(data.data, data.size, _buf.get());
    return {_buf.get(), data.size, data.dtype};
  }
  byteps::common::compressor::tensor_t Decompress(
      byteps::common::compressor::tensor_t data) override {
    return data;
  }
};

}  // namespace

Framework::Framework(int tensors, uint64_t seed) {
  for (int number = 0; number < tensors; ++number) {
    tensors_.push_back(std::make_unique<Tensor>());
    tensors_.back()->random.seed(seed << 32 | static_cast<uint64_t>(number));
    Declare(*tensors_.back(), static_cast<uint64_t>(number), number % 4 == 3);
  }
  waiting_ = std::thread([this] { WaitForDone(); });
}

Framework::~Framework() {
  ending_ = true;
  waiting_.join();
}

// What InitTensor does, less the servers: each key goes to a server, as EncodeDefaultKey would say.
void Framework::Declare(Tensor& tensor, uint64_t number, bool compress) {
  const size_t bound = BytePSGlobal::GetPartitionBound();
  tensor.size = 1 + tensor.random() % (5 * bound);
  tensor.context.initialized = true;
  tensor.context.partitioning.Start(static_cast<uint32_t>(bound), tensor.size);
  tensor.context.tensor_name = "tensor" + std::to_string(number);
  for (size_t begin = 0; begin < tensor.size; begin += bound) {
    const uint64_t key = number << 16 | tensor.context.key_list.size();
    tensor.context.key_list.push_back(key);
    PlaceKey(key);
    if (compress) tensor.context.compressor_list.push_back(std::make_shared<Copy>(bound));
  }
}

void Framework::Submit(int number, int priority) {
  Tensor& tensor = *tensors_[static_cast<size_t>(number)];
  Operation operation;
  operation.sent.resize(tensor.size);
  for (uint8_t& byte : operation.sent) byte = static_cast<uint8_t>(tensor.random());
  operation.data = std::make_shared<std::vector<uint8_t>>(operation.sent);
  operation.staging = std::make_shared<std::vector<uint8_t>>(tensor.size);
  tensor.context.cpubuff = operation.staging->data();
  const auto data = std::make_shared<ByteTensor>(operation.data);
  const int handle = handles_.AllocateHandle();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tensor.operations.emplace(handle, std::move(operation));
  }
  ++operations_;
  auto stages = byteps::common::GetPushQueueList(CPU_DEVICE_ID);
  const auto pull = byteps::common::GetPullQueueList(CPU_DEVICE_ID);
  stages->insert(stages->end(), pull->begin(), pull->end());
  byteps::common::EnqueueTensor(
      tensor.context, data, data, nullptr, CPU_DEVICE_ID, priority, tensor.version++,
      [this, handle](const byteps::common::Status& status) { handles_.MarkDone(handle, status); },
      stages);
}

void Framework::Wait(int number) {
  Tensor& tensor = *tensors_[static_cast<size_t>(number)];
  std::unique_lock<std::mutex> lock(mutex_);
  const bool done = changed_.wait_for(lock, kLimit, [&] {
    return !failure_.empty() ||
           std::all_of(tensor.operations.begin(), tensor.operations.end(),
                       [this](const auto& entry) { return announced_.contains(entry.first); });
  });
  if (!done) Fail("not done in time: " + tensor.context.tensor_name);
  for (const auto& [handle, operation] : tensor.operations) {
    for (size_t i = 0; failure_.empty() && i < tensor.size; ++i) {
      if ((*operation.data)[i] != static_cast<uint8_t>(2 * operation.sent[i] + 1))
        Fail("wrong bytes in " + tensor.context.tensor_name);
    }
  }
  tensor.operations.clear();
}

void Framework::WaitForDone() {
  int handles[8];
  while (!ending_) {
    const int count = NextDone(std::chrono::milliseconds(50), handles, 8);
    std::lock_guard<std::mutex> lock(mutex_);
    for (int i = 0; i < count; ++i) {
      if (++announced_[handles[i]] > 1) Fail("announced twice");
      if (!handles_.PollHandle(handles[i])) Fail("announced before it was done");
    }
    changed_.notify_all();
  }
}

void Framework::Fail(const std::string& what) {
  if (!failure_.empty()) return;
  failure_ = what + "; the network has" + FakeNetwork::Get().outstanding() + "; waiting in stages";
  for (int type = 0; type < byteps::common::QueueNum; ++type) {
    auto* queue = BytePSGlobal::GetScheduledQueue(static_cast<byteps::common::QueueType>(type));
    const auto size = queue->pendingSize();
    if (size > 0) failure_ += " " + byteps::common::LogStrings[type] + ":" + std::to_string(size);
  }
  failure_ += "; " + FakeNetwork::Get().failure();
  changed_.notify_all();
}

std::string Framework::failure() {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

}  // namespace byteprophet
