#include "push_pulls.h"

#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

namespace byteprophet {

PushPulls& PushPulls::OfProcess() {
  static auto* operations = new PushPulls;
  return *operations;
}

bool PushPulls::Hopeless() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return IsHopeless();
}

void PushPulls::ThrowIfHopeless() const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (IsHopeless()) throw std::logic_error(Why());
}

bool PushPulls::Begin(uint64_t operation, Fail fail) {
  std::string why;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!IsHopeless()) {
      ++begun_;
      outstanding_.emplace(operation, std::move(fail));
      return true;
    }
    why = Why();
  }
  fail(why);
  return false;
}

bool PushPulls::End(uint64_t operation) {
  std::map<uint64_t, Fail> failed;
  std::string why;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (outstanding_.erase(operation) == 0) return false;
    ++completed_;
    failed = TakeHopeless();
    if (!failed.empty()) why = Why();
  }
  for (const auto& [number, fail] : failed) fail(why);
  return true;
}

void PushPulls::Leave(bool suspends) {
  std::lock_guard<std::mutex> lock(mutex_);
  departure_ = Departure{begun_, suspends};
}

std::optional<Departure> PushPulls::departure() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return departure_;
}

void PushPulls::HasLeft(uint64_t operations, const std::string& who) {
  std::map<uint64_t, Fail> failed;
  std::string why;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!left_ || operations < left_->operations) left_ = Left{operations, who};
    failed = TakeHopeless();
    if (!failed.empty()) why = Why();
  }
  for (const auto& [number, fail] : failed) fail(why);
}

void PushPulls::Reset() {
  std::lock_guard<std::mutex> lock(mutex_);
  outstanding_.clear();
  begun_ = completed_ = 0;
  departure_.reset();
  left_.reset();
}

std::string PushPulls::Why() const {
  return left_->who + " after " + std::to_string(left_->operations) +
         " push_pulls and takes no part in this one: all workers must make as many, so each needs "
         "as many batches";
}

std::map<uint64_t, PushPulls::Fail> PushPulls::TakeHopeless() {
  return IsHopeless() ? std::exchange(outstanding_, {}) : std::map<uint64_t, Fail>{};
}

void Preparation::WaitForAll() {
  constexpr int kTries = 1000;
  for (int tries = 0; threads_ > 0 && tries < kTries; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace byteprophet
