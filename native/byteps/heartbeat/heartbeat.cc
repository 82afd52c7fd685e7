#include "heartbeat.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <utility>

#include "beat.h"
#include "beat_line.h"
#include "broken_link.h"
#include "lost_peer.h"
#include "native/blocked_signals.h"
#include "native/byteps/leaving.h"
#include "push_pulls.h"
#include "silence.h"

namespace byteprophet {
namespace {

// From a verdict to the end of the process: time for a training script to save what it has. The
// scheduler stays until everybody has had its verdict and its time.
constexpr double kLastWords = 3.0;                                // s
constexpr double kSchedulerStays = kLastWords + 2 * kBeatPeriod;  // s
constexpr double kReconnectAfter = 3.0;                           // s of silence
// Until it is registered a worker or server looks so often whether it is. The scheduler may refuse
// what it hears before; so the first beat after that follows at once, or one that is stopped now
// would never be missed.
constexpr double kLookWhetherRegistered = 0.05;  // s

// ps-lite's numbers: servers are 8, 10, 12..., workers 9, 11, 13...
constexpr int kFirstNode = 8;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

double SecondsFrom(const char* name, double standard_s) {
  const std::string text = Environment(name);
  if (text.empty()) return standard_s;
  char* end = nullptr;
  const double value_s = std::strtod(text.c_str(), &end);
  if (*end == '\0' && (value_s == 0 || (value_s >= kShortestLimit && value_s <= kLongestLimit)))
    return value_s;
  Say("error", std::string(name) + "='" + Printable(text) + "': must be a number of seconds from " +
                   Number(kShortestLimit) + " to " + Number(kLongestLimit) + ", or 0 for no limit");
  _exit(2);
}

class Stopwatch {
 public:
  // Since the last call, or since it was made.
  double Step() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace

Heartbeat::Heartbeat() = default;

Heartbeat::~Heartbeat() { Stop(); }

void Heartbeat::Start(const std::string& address, const std::string& scheduler, int port) {
  Limits limits;
  limits.dead_after_s = SecondsFrom("BYTEPROPHET_DEAD_AFTER_S", limits.dead_after_s);
  limits.start_timeout_s = SecondsFrom("BYTEPROPHET_START_TIMEOUT_S", limits.start_timeout_s);
  dead_after_s_ = limits.dead_after_s;
  const std::string role = Environment("DMLC_ROLE");
  is_worker_ = role == "worker";
  const std::string worker = Environment("DMLC_WORKER_ID");
  if (is_worker_ && !worker.empty()) shared_memory_ = SharedMemoryName();
  name_ = Environment("BYTEPROPHET_ROLE");
  if (name_.empty()) name_ = is_worker_ ? "worker-" + worker : role;
  node_id_ = -1;
  std::random_device lot;
  own_ = (static_cast<uint64_t>(lot()) << 32 | lot()) | 1;
  stop_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);

  const BlockedSignals blocked;
  const std::string place = "scheduler (" + scheduler + ")";
  if (role == "scheduler") {
    const auto expected = [](const char* name) {
      return std::strtoul(Environment(name).c_str(), nullptr, 10);
    };
    {
      std::lock_guard<std::mutex> lock(mutex_);
      roll_ = std::make_unique<Roll>(place, expected("DMLC_NUM_WORKER"),
                                     expected("DMLC_NUM_SERVER"), limits);
      lost_.clear();
    }
    thread_ = std::thread(&Heartbeat::RunScheduler, this);
  } else {
    const bool local = std::atoi(Environment("DMLC_LOCAL").c_str()) != 0;  // as ps-lite reads it
    const std::string where = (local ? "ipc:///tmp/" : scheduler + ":") + std::to_string(port);
    thread_ = std::thread(&Heartbeat::RunOther, this, Listener(place, where, limits),
                          local ? where : "tcp://" + where, address);
  }
}

void Heartbeat::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  (void)!write(stop_fd_, &one, sizeof(one));
  thread_.join();
  close(stop_fd_);
  std::lock_guard<std::mutex> lock(mutex_);
  roll_.reset();
}

void Heartbeat::Connected(int own, int other) {
  node_id_ = own;
  if (other < kFirstNode) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (roll_) roll_->Registered(other % 2 == 1);
}

bool Heartbeat::IsBeat(const void* data, size_t size_bytes, std::string* reply) {
  const auto beat = BeatFrom({static_cast<const char*>(data), size_bytes});
  if (!beat) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  if (!roll_) return true;
  // One that has heard another scheduler learns from the answer that this is not the same.
  if (beat->scheduler == 0 || beat->scheduler == own_)
    roll_->Heard(beat->sender, beat->is_worker, beat->name, beat->departure);
  *reply = ToText(Answer{own_, lost_, roll_->Missing(), roll_->Left()});
  return true;
}

void Heartbeat::RunScheduler() {
  Stopwatch watch;
  std::optional<std::string> lost;
  while (!lost) {
    if (StoppedWithin(kBeatPeriod / 2)) return;
    std::lock_guard<std::mutex> lock(mutex_);
    lost = roll_->Pass(watch.Step());
    if (lost) lost_ = *lost;
  }
  Say("error", *lost);
  if (!StoppedWithin(kSchedulerStays)) End();
}

void Heartbeat::RunOther(Listener listener, std::string endpoint, std::string address) {
  BeatLine line(endpoint);
  Stopwatch watch;
  std::optional<std::string> lost;
  double until_beat_s = 0, until_connect_s = kReconnectAfter;
  while (!lost) {
    const double step_s = watch.Step();
    if (node_id_ >= kFirstNode && listener.Registered()) until_beat_s = 0;
    lost = listener.Pass(step_s);
    if (!lost && dead_after_s_ > 0)
      lost = BrokenLink::OfProcess().Pass(std::min(step_s, kLongestStep),
                                          dead_after_s_ + kSchedulersHeadStart);
    if (const auto notice = listener.Notice(); notice && !lost)
      Say("warning", OwnName(address) + " " + *notice);
    if ((until_connect_s -= step_s) <= 0) {
      line.Reconnect();
      until_connect_s = kReconnectAfter;
    }
    if ((until_beat_s -= step_s) <= 0) {
      line.Send({own_, listener.sender(), is_worker_, OwnName(address),
                 PushPulls::OfProcess().departure()});
      until_beat_s = kBeatPeriod;
    }
    const double wait_s =
        listener.registered() ? until_beat_s : std::min(until_beat_s, kLookWhetherRegistered);
    if (line.Wait(wait_s, stop_fd_)) return;
    while (const auto answer = line.Receive()) {
      until_connect_s = kReconnectAfter;
      if (!lost) lost = listener.Heard(answer->scheduler, is_worker_ ? answer->missing : "");
      if (!lost && !answer->lost.empty()) lost = answer->lost;
      if (answer->left) PushPulls::OfProcess().HasLeft(answer->left->operations, answer->left->who);
    }
  }
  Say("error", *lost);
  SetLostPeer(*lost);
  if (!StoppedWithin(kLastWords)) End();
}

void Heartbeat::End() const { EndAtOnce(1, shared_memory_); }

std::string Heartbeat::OwnName(const std::string& address) const {
  std::string name = name_;
  const int id = node_id_;
  if (name == "server" && id >= kFirstNode)
    name.append("-").append(std::to_string((id - kFirstNode) / 2));
  return name + " (" + address + ")";
}

bool Heartbeat::StoppedWithin(double time_s) const {
  pollfd stop = {stop_fd_, POLLIN, 0};
  return poll(&stop, 1, static_cast<int>(time_s * 1000)) > 0;
}

}  // namespace byteprophet
