// Who has been silent for too long: the rules of the heartbeats (heartbeat.h), without threads,
// sockets or clocks.
//
// Whoever watches tells how much time has passed. Of a long step only kLongestStep counts: a
// watcher that was stopped, or got no CPU, cannot say of others that they were silent, as what they
// sent is still waiting to be read.
//
// Not thread safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "beat.h"

namespace byteprophet {

constexpr double kBeatPeriod = 1.0;   // s, from one heartbeat of a worker or server to its next
constexpr double kLongestStep = 2.0;  // s
constexpr double kLastBeatSpread =
    1.5;  // s: what is cut off at one moment falls silent within a period, and a little
// s: what hears nothing from the scheduler gives it this much longer. So where a role is cut off
// the scheduler speaks first, and it can tell a lost role from being lost itself.
constexpr double kSchedulersHeadStart = 3.0;

// s: who waits for so long at the start says for whom, once.
constexpr double kWaitsInSilence = 10.0;

// What a limit may be, s.
constexpr double kShortestLimit = 3.0;
constexpr double kLongestLimit = 1e6;

struct Limits {
  double dead_after_s = 12;      // 0: never
  double start_timeout_s = 600;  // 0: never
};

// Without a fraction where there is none: "12", "4.5".
inline std::string Number(double value) {
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

// What the scheduler role knows of workers and servers.
class Roll {
 public:
  // `own_name` is how to call the scheduler itself: "scheduler (10.87.0.1)".
  Roll(std::string own_name, size_t workers, size_t servers, Limits limits)
      : own_name_(std::move(own_name)), expected_{workers, servers}, limits_(limits) {}

  // ps-lite has registered a worker or server, and with it all: now as many belong to the job as it
  // says, which after a suspension may be other than was expected. One whose first beat has not
  // come yet is watched from here on.
  void Registered(bool is_worker) {
    if (!std::exchange(complete_, true)) expected_ = {0, 0};
    ++(is_worker ? expected_.workers : expected_.servers);
  }

  // A heartbeat came; `sender` is the same for all of one process' heartbeats, its name may become
  // more precise. One that waits for its turn to join (resume) is none of this job yet.
  void Heard(uint64_t sender, bool is_worker, const std::string& name,
             std::optional<Departure> departure = std::nullopt) {
    if (complete_ && peers_.count(sender) == 0 &&
        Count(is_worker) >= (is_worker ? expected_.workers : expected_.servers))
      return;
    peers_[sender] = Peer{name, is_worker, 0.0, departure};
  }

  // Of the workers that have left and wait for the others, the one with the fewest operations.
  std::optional<WhoLeft> Left() const {
    std::optional<WhoLeft> left;
    for (auto& [sender, peer] : peers_) {
      if (!peer.departure || (left && left->operations <= peer.departure->operations)) continue;
      left = WhoLeft{
          peer.departure->operations,
          peer.name + (peer.departure->suspends ? " has called suspend()" : " has finished")};
    }
    return left;
  }

  // `step_s` have passed. What ends the job, if anything does.
  std::optional<std::string> Pass(double step_s) {
    step_s = std::min(step_s, kLongestStep);
    waited_s_ += step_s;
    double longest_s = 0;
    for (auto& [sender, peer] : peers_) longest_s = std::max(longest_s, peer.silent_s += step_s);
    if (limits_.dead_after_s > 0 && longest_s >= limits_.dead_after_s) return Silent(longest_s);
    unheard_s_ = complete_ && SomeAreUnheard() ? unheard_s_ + step_s : 0;
    if (limits_.dead_after_s > 0 && unheard_s_ >= limits_.dead_after_s)
      return own_name_ + " has waited " + Number(limits_.dead_after_s) +
             " s for the first heartbeat of all that have registered: " + WhoCame() +
             ": the job cannot go on";
    if (!complete_ && limits_.start_timeout_s > 0 && waited_s_ >= limits_.start_timeout_s)
      return own_name_ + " waited " + Number(limits_.start_timeout_s) +
             " s for all to register: " + WhoCame() + ": the job cannot go on";
    return std::nullopt;
  }

  // Who has registered so far, for those who wait for the others; empty once all have.
  std::string Missing() const { return complete_ ? "" : WhoCame(); }

 private:
  struct Peer {
    std::string name;
    bool is_worker;
    double silent_s;
    std::optional<Departure> departure;
  };

  struct Expected {
    size_t workers, servers;
  };

  size_t Count(bool is_worker) const {
    return static_cast<size_t>(std::count_if(peers_.begin(), peers_.end(), [&](auto& entry) {
      return entry.second.is_worker == is_worker;
    }));
  }

  bool SomeAreUnheard() const {
    return Count(true) < expected_.workers || Count(false) < expected_.servers;
  }

  std::string Silent(double longest_s) const {
    std::vector<std::string> names;
    for (auto& [sender, peer] : peers_)
      if (peer.silent_s > longest_s - kLastBeatSpread) names.push_back(peer.name);
    std::sort(names.begin(), names.end());
    const std::string limit = Number(limits_.dead_after_s) + " s";
    if (names.size() == peers_.size() && names.size() > 1)
      return own_name_ + " has heard from nobody for " + limit + " (neither " +
             Join(names, " nor ") + ", it is cut off or they are gone): the job cannot go on";
    return Join(names, " and ") + (names.size() == 1 ? " has" : " have") + " been silent for " +
           limit + ": the job cannot go on";
  }

  std::string WhoCame() const {
    std::vector<std::string> names;
    for (auto& [sender, peer] : peers_) names.push_back(peer.name);
    std::sort(names.begin(), names.end());
    auto of = [](size_t here, size_t wanted) {
      return std::to_string(here) + " of " + std::to_string(wanted);
    };
    return of(Count(true), expected_.workers) + " workers and " +
           of(Count(false), expected_.servers) + " servers did" +
           (names.empty() ? "" : " (" + Join(names, ", ") + ")");
  }

  static std::string Join(const std::vector<std::string>& names, const std::string& between) {
    std::string text;
    for (const auto& name : names) text += (text.empty() ? "" : between) + name;
    return text;
  }

  std::string own_name_;
  Expected expected_;
  Limits limits_;
  std::map<uint64_t, Peer> peers_;  // by sender
  bool complete_ = false;
  double waited_s_ = 0;
  double unheard_s_ = 0;  // since all have registered, while the first beat of one is missing
};

// What a worker or server knows of the scheduler.
class Listener {
 public:
  // `scheduler` is how to call it: "scheduler (10.87.0.1)"; `where` it should be: "10.87.0.1:9000".
  Listener(std::string scheduler, std::string where, Limits limits)
      : scheduler_(std::move(scheduler)), where_(std::move(where)), limits_(limits) {}

  // An answer came, which says who has registered while others are missing. `sender` differs from
  // the last one's where the scheduler was started anew. Who has not registered joins the new one
  // (so does ps-lite); for others the line is returned that ends the job, as the new one knows
  // nothing of it.
  std::optional<std::string> Heard(uint64_t sender, const std::string& missing = "") {
    silent_s_ = 0;
    missing_ = missing;
    if (registered_ && sender_ && *sender_ != sender)
      return scheduler_ + " has been started anew: the job cannot go on";
    sender_ = sender;
    return std::nullopt;
  }

  // ps-lite has registered this process, so the scheduler is there; which one, the next answer
  // says: the last may have come from one that has started anew since. Whether this is news.
  bool Registered() {
    if (std::exchange(registered_, true)) return false;
    sender_.reset();
    return true;
  }
  bool registered() const { return registered_; }

  // A warning where this process has been waiting for a while: for the scheduler, or for others to
  // register. Once of each.
  std::optional<std::string> Notice() {
    if (registered_ || waited_s_ < kWaitsInSilence) return std::nullopt;
    const std::string until = limits_.start_timeout_s > 0
                                  ? "; gives up after " + Number(limits_.start_timeout_s) + " s"
                                  : "";
    if (!sender_ && !std::exchange(says_who_is_silent_, true))
      return "waits for " + scheduler_ + " to answer at " + where_ +
             " (DMLC_PS_ROOT_URI:DMLC_PS_ROOT_PORT)" + until;
    if (sender_ && !missing_.empty() && !std::exchange(says_who_is_missing_, true))
      return "waits for all to register: " + missing_ + until;
    return std::nullopt;
  }

  std::optional<std::string> Pass(double step_s) {
    const bool known = sender_ || registered_;
    silent_s_ += std::min(step_s, kLongestStep);
    waited_s_ += std::min(step_s, kLongestStep);
    const double limit_s = limits_.dead_after_s + kSchedulersHeadStart;
    if (known && limits_.dead_after_s > 0 && silent_s_ >= limit_s)
      return scheduler_ + " has been silent for " + Number(limit_s) + " s: the job cannot go on";
    if (!known && limits_.start_timeout_s > 0 && silent_s_ >= limits_.start_timeout_s)
      return "waited " + Number(limits_.start_timeout_s) + " s for " + scheduler_ +
             " to answer at " + where_ + ": the job cannot go on";
    return std::nullopt;
  }

  uint64_t sender() const { return sender_.value_or(0); }

 private:
  std::string scheduler_;
  std::string where_;
  Limits limits_;
  std::optional<uint64_t> sender_;
  std::string missing_;
  bool registered_ = false;
  bool says_who_is_silent_ = false;
  bool says_who_is_missing_ = false;
  double silent_s_ = 0;
  double waited_s_ = 0;
};

}  // namespace byteprophet
