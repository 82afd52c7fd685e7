// Takes what a role records, every millisecond, in a thread of its own, as Python does.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace byteprophet {

template <typename Row>
class RecordTaker {
 public:
  using Take = int (*)(Row* out, int capacity);

  explicit RecordTaker(Take take) : take_(take), thread_([this] { Run(); }) {}
  RecordTaker(const RecordTaker&) = delete;
  RecordTaker& operator=(const RecordTaker&) = delete;
  ~RecordTaker() {
    ended_ = true;
    thread_.join();
  }

 private:
  void Run() {
    std::vector<Row> some(64);
    while (!ended_) {
      while (take_(some.data(), static_cast<int>(some.size())) > 0) {
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  const Take take_;
  std::atomic<bool> ended_{false};
  std::thread thread_;  // last: it uses the others
};

}  // namespace byteprophet
