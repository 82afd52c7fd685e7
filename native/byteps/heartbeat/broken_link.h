// A data link of a worker that has ended, although nobody has left: told by the van (data_van.h),
// asked for by the heartbeats (heartbeat.h).
//
// What was on its way over the link is lost, so the job cannot go on. Mostly the server is gone,
// and the scheduler role names it better: its verdict has the time to come first. But where the
// server and the scheduler role live, such as behind a firewall that has cut this one connection,
// nobody else would end the wait.
//
// Threads: any. The mutex is held for a copy.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace byteprophet {

class BrokenLink {
 public:
  // Never destroyed: threads may end links while the process ends.
  static BrokenLink& OfProcess() {
    static auto* const link = new BrokenLink;
    return *link;
  }

  // `line` says which. The first stays. `has_waited`: it ended because the other end had been
  // silent for longer than the scheduler role waits.
  void Broke(std::string line, bool has_waited) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (line_) return;
    line_ = std::move(line);
    has_waited_ = has_waited;
    waited_s_ = 0;
  }

  // This process leaves the job, and may join it again.
  void Forget() {
    std::lock_guard<std::mutex> lock(mutex_);
    line_.reset();
  }

  // `step_s` have passed. The line, where the scheduler role has had `patience_s` for its own.
  std::optional<std::string> Pass(double step_s, double patience_s) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!line_ || (!has_waited_ && (waited_s_ += step_s) < patience_s)) return std::nullopt;
    return line_;
  }

 private:
  std::mutex mutex_;  // guards what follows
  std::optional<std::string> line_;
  bool has_waited_ = false;
  double waited_s_ = 0;
};

}  // namespace byteprophet
