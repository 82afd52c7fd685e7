#include "answers.h"

#include <algorithm>

#include "tcp.h"

namespace byteprophet {
namespace {

constexpr int kTypeBits = 8;  // BytePS' types of requests and data make numbers below 100
constexpr int32_t kLastRank = (1 << (31 - kTypeBits)) - 1;

int64_t InNs(std::chrono::steady_clock::time_point now) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count();
}

}  // namespace

int CommandWithPriority(int type, int32_t priority) {
  const int32_t rank = priority >= 0 ? 0 : std::min(-(priority + 1), kLastRank - 1) + 1;
  return type | rank << kTypeBits;
}

int TypeOf(int command) { return command & ((1 << kTypeBits) - 1); }

int32_t RankOf(int command) { return command >> kTypeBits; }

Answers& Answers::Get() {
  static auto* const answers = new Answers;  // threads of ps-lite may outlive main
  return *answers;
}

void Answers::Heard(int worker, int fd) {
  std::lock_guard<std::mutex> lock(mutex_);
  workers_[worker].fd = fd;
}

void Answers::Add(int worker, int32_t rank, uint64_t bytes, std::function<void()> send) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Worker& to = workers_[worker];
    const auto now = Clock::now();
    if (!to.waiting.empty() || !MaySend(to, now)) {
      to.waiting.emplace(std::pair(rank, arrivals_++), Answer{bytes, std::move(send)});
      // While it is being stopped, the thread goes on as long as anything waits.
      if (!sender_.joinable() && !stopping_) sender_ = std::thread(&Answers::Run, this);
    } else {
      to.flow.OnHanded(bytes, InNs(now));
      to.last_sent = now;
    }
  }
  if (send) {
    send();
  } else {
    changed_.notify_one();
  }
}

void Answers::Stop() {
  std::thread sender;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    sender.swap(sender_);
  }
  changed_.notify_one();
  if (sender.joinable()) sender.join();
}

void Answers::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    if (auto send = TakeNext(Clock::now())) {
      lock.unlock();
      send();
      lock.lock();
    } else if (AnyWaits()) {
      changed_.wait_for(lock, UntilNextLook());
    } else if (stopping_) {
      return;
    } else {
      changed_.wait(lock);
    }
  }
}

bool Answers::MaySend(Worker& worker, Clock::time_point now) {
  if (stopping_) return true;
  const auto reading = ReadTcp(worker.fd);
  if (!reading) return true;
  worker.flow.OnReading(*reading, InNs(now));
  return worker.flow.may_send() || now - worker.last_sent > kPatience;
}

std::function<void()> Answers::TakeNext(Clock::time_point now) {
  for (auto& [id, worker] : workers_) {
    if (worker.waiting.empty() || !MaySend(worker, now)) continue;
    const auto first = worker.waiting.begin();
    Answer answer = std::move(first->second);
    worker.waiting.erase(first);
    worker.flow.OnHanded(answer.bytes, InNs(now));
    worker.last_sent = now;
    return std::move(answer.send);
  }
  return nullptr;
}

bool Answers::AnyWaits() const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [](const auto& entry) { return !entry.second.waiting.empty(); });
}

std::chrono::nanoseconds Answers::UntilNextLook() const {
  int64_t soonest_ns = Flow::kSlackNs;
  for (const auto& [id, worker] : workers_) {
    if (!worker.waiting.empty()) soonest_ns = std::min(soonest_ns, worker.flow.ask_again_ns());
  }
  return std::chrono::nanoseconds(soonest_ns);
}

}  // namespace byteprophet
