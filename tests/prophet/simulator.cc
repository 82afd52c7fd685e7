#include "simulator.h"

#include <algorithm>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "checked_policy.h"
#include "random.h"
#include "scenario.h"

namespace prophet {
namespace {

class Simulation {
 public:
  Simulation(const std::string& policy, uint64_t seed, const PolicyMaker& make)
      : random_(seed), name_(policy), make_(make), scenario_(MakeScenario(random_)) {}

  Outcome Run() {
    Outcome outcome;
    try {
      Begin();
      Loop();
      outcome.deadlock = !Finished();
      if (outcome.deadlock) outcome.failure = "deadlock: " + Outstanding();
    } catch (const Broken& broken) {
      outcome.failure = "at " + std::to_string(now_) + " ns: " + broken.what();
    }
    outcome.sent = sent_;
    outcome.suspends = suspends_;
    return outcome;
  }

 private:
  enum class Event { kStart, kReady, kArrive, kAck, kPulled, kIteration, kAsk, kSuspend };

  struct Scheduled {
    TimeNs time;
    uint64_t sequence;
    Event event;
    size_t worker;
    size_t life;  // of the job, a new one after each suspend
    Item item;
    bool operator>(const Scheduled& other) const {
      return std::tie(time, sequence) > std::tie(other.time, other.sequence);
    }
  };

  struct Worker {
    Settings settings;
    std::unique_ptr<CheckedPolicy> policy;
    size_t iteration = 0;          // the next to start
    size_t outstanding = 0;        // of the iterations started: not acknowledged, or not pulled
    std::set<uint64_t> busy;       // keys given to the policy and not yet free again
    std::set<uint64_t> half_done;  // of these: acknowledged or answered
    std::multimap<uint64_t, Item> deferred;  // what comes when its key is free
  };

  void At(TimeNs time, Event event, size_t worker, const Item& item = {}) {
    events_.push({time, sequence_++, event, worker, life_, item});
  }
  TimeNs Later(TimeNs longest_ns) { return now_ + random_.Uniform(0, longest_ns); }

  void Begin() {
    workers_.resize(scenario_.workers);
    for (Worker& worker : workers_) worker.settings = RandomSettings(name_, random_);
    if (scenario_.drop_and_resume) At(Later(20 * scenario_.max_delay_ns), Event::kSuspend, 0);
    Resume(0);
  }

  void Resume(size_t iteration) {
    for (size_t id = 0; id < workers_.size(); ++id) {
      Worker& worker = workers_[id];
      worker.policy = std::make_unique<CheckedPolicy>(
          make_(name_, worker.settings), RulesOf(name_, worker.settings), scenario_.servers);
      worker.iteration = iteration;
      worker.outstanding = 0;
      worker.busy.clear();
      worker.half_done.clear();
      worker.deferred.clear();
      At(Later(scenario_.iteration_gap_ns), Event::kStart, id);
    }
    pushes_.clear();
  }

  void Loop() {
    while (!events_.empty()) {
      const Scheduled next = events_.top();
      events_.pop();
      now_ = next.time;
      if (next.life == life_) {
        Handle(next);
      } else {
        HandleStale(next);
      }
      // Simultaneous events are one: the driver asks when it has seen them all, or after each.
      const bool more_now =
          !events_.empty() && events_.top().time == now_ && events_.top().worker == next.worker;
      if (more_now && random_.Chance(50)) continue;
      Ask(next.worker);
    }
  }

  // Of what was dropped. Its acknowledgement may still come, and is one of an unknown key.
  void HandleStale(const Scheduled& next) {
    CheckedPolicy& policy = *workers_[next.worker].policy;
    if (next.event == Event::kAck && !policy.in_flight(next.item.key))
      policy.OnAcked(next.item.key, now_);
  }

  void Handle(const Scheduled& next) {
    Worker& worker = workers_[next.worker];
    switch (next.event) {
      case Event::kStart:
        return Start(next.worker);
      case Event::kReady:
        return Ready(worker, next.item);
      case Event::kArrive:
        return Arrive(next.worker, next.item);
      case Event::kAck:
        return Acked(worker, next.item);
      case Event::kPulled:
        return HalfDone(worker, next.item.key);
      case Event::kIteration:
        return worker.policy->OnIteration(now_);
      case Event::kSuspend:
        return Suspend();
      case Event::kAsk:
        return;
    }
  }

  // Every worker drops what it has; all go on with the iteration after the furthest one.
  void Suspend() {
    ++life_;
    ++suspends_;
    size_t iteration = 0;
    for (const Worker& worker : workers_) iteration = std::max(iteration, worker.iteration);
    Resume(iteration);
    if (random_.Chance(30)) At(Later(20 * scenario_.max_delay_ns), Event::kSuspend, 0);
  }

  void Start(size_t id) {
    Worker& worker = workers_[id];
    if (worker.iteration == scenario_.iterations.size()) return;
    const bool first = worker.iteration == 0;
    const std::vector<Item>& items = scenario_.iterations[worker.iteration++];
    if (!first && scenario_.iteration_calls > 0) At(now_, Event::kIteration, id);
    TimeNs release = now_;
    for (const Item& item : DivergentOrder(items)) {
      if (random_.Chance(40)) release += random_.Uniform(0, scenario_.burst_gap_ns);
      if (scenario_.iteration_calls == 2 && random_.Chance(2)) At(release, Event::kIteration, id);
      At(release, Event::kReady, id, item);
    }
    worker.outstanding += items.size();
    // Without a barrier iterations may overlap; with one, Free() starts the next.
    if (!scenario_.barrier || items.empty())
      At(release + random_.Uniform(0, scenario_.iteration_gap_ns), Event::kStart, id);
  }

  std::vector<Item> DivergentOrder(std::vector<Item> items) {
    if (random_.Chance(10)) random_.Shuffle(items);
    if (items.size() > 1 && random_.Chance(30)) {
      const auto last = static_cast<int64_t>(items.size()) - 1;
      std::swap(items[static_cast<size_t>(random_.Uniform(0, last))],
                items[static_cast<size_t>(random_.Uniform(0, last))]);
    }
    return items;
  }

  void Ready(Worker& worker, const Item& item) {
    if (!worker.busy.insert(item.key).second) {
      worker.deferred.emplace(item.key, item);
      return;
    }
    worker.policy->OnReady(item, now_);
  }

  // The server has a push. All pulls of the key are answered when every worker has pushed it.
  void Arrive(size_t id, const Item& item) {
    TimeNs delay_ns = random_.Uniform(0, scenario_.max_delay_ns);
    if (random_.Chance(scenario_.late_percent)) delay_ns += 100 * scenario_.max_delay_ns;
    At(now_ + delay_ns, Event::kAck, id, item);
    if (!scenario_.coupled) return;
    size_t& count = pushes_[item.key];
    if (++count < workers_.size()) return;
    count = 0;
    for (size_t other = 0; other < workers_.size(); ++other)
      At(Later(scenario_.max_delay_ns), Event::kPulled, other, item);
  }

  void Acked(Worker& worker, const Item& item) {
    worker.policy->OnAcked(item.key, now_);
    if (random_.Chance(5)) worker.policy->OnAcked(item.key, now_);  // again
    if (random_.Chance(5)) worker.policy->OnAcked(~uint64_t{0}, now_);
    if (scenario_.coupled) {
      HalfDone(worker, item.key);
    } else {
      Free(worker, item.key);
    }
  }

  // Acknowledgement and answer, whichever comes first; the key is free after both.
  void HalfDone(Worker& worker, uint64_t key) {
    if (!worker.half_done.insert(key).second) {
      worker.half_done.erase(key);
      Free(worker, key);
    }
  }

  void Free(Worker& worker, uint64_t key) {
    worker.busy.erase(key);
    --worker.outstanding;
    if (const auto waiting = worker.deferred.extract(key)) Ready(worker, waiting.mapped());
    if (scenario_.barrier && worker.outstanding == 0) {
      const auto id = static_cast<size_t>(&worker - workers_.data());
      At(Later(scenario_.iteration_gap_ns), Event::kStart, id);
    }
  }

  void Ask(size_t id) {
    just_sent_.clear();
    const auto again = workers_[id].policy->Ask(now_, just_sent_);
    if (again) At(*again, Event::kAsk, id);
    sent_ += just_sent_.size();
    for (const Item& item : just_sent_) At(Later(scenario_.max_delay_ns), Event::kArrive, id, item);
  }

  bool Finished() const {
    return std::all_of(workers_.begin(), workers_.end(), [this](const Worker& worker) {
      return worker.iteration == scenario_.iterations.size() && worker.outstanding == 0 &&
             worker.policy->pending() == 0;
    });
  }

  std::string Outstanding() const {
    std::string text;
    for (size_t id = 0; id < workers_.size(); ++id) {
      text += (id > 0 ? ", worker " : "worker ") + std::to_string(id) + " has " +
              std::to_string(workers_[id].outstanding) + " outstanding, " +
              std::to_string(workers_[id].policy->pending()) + " of them not sent";
    }
    return text;
  }

  Random random_;
  const std::string& name_;
  const PolicyMaker& make_;
  const Scenario scenario_;
  TimeNs now_ = 0;
  uint64_t sequence_ = 0;
  size_t life_ = 0;
  size_t sent_ = 0;
  size_t suspends_ = 0;
  std::vector<Worker> workers_;
  std::map<uint64_t, size_t> pushes_;  // by key: workers whose push has arrived, of this round
  std::vector<Item> just_sent_;
  std::priority_queue<Scheduled, std::vector<Scheduled>, std::greater<>> events_;
};

}  // namespace

Outcome Simulate(const std::string& policy, uint64_t seed, const PolicyMaker& make) {
  return Simulation(policy, seed, make).Run();
}

}  // namespace prophet
