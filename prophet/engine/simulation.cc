// The loop: what happens next, and who is told.
//
// What happens at one time is done in this order: ends of phases on the links (pushes, then
// answers; by sender, then receiver), then events (events.h), then policies are asked, worker after
// worker, one at a time: what an answer of a policy brings about at once comes before the next
// worker.
#include <algorithm>
#include <deque>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "prophet/engine/events.h"
#include "prophet/engine/fabric.h"
#include "prophet/engine/fold.h"
#include "prophet/engine/job.h"
#include "prophet/engine/servers.h"
#include "prophet/engine/worker.h"

namespace prophet::engine {
namespace {

class Simulation {
 public:
  // `counts`: how many workers each one stands for.
  Simulation(const Job& job, std::span<const int64_t> counts, const PolicyMaker& make)
      : job_(job),
        plan_(job),
        pushes_(job.worker_bandwidth_bps, job.server_bandwidth_bps, counts),
        answers_(job.server_bandwidth_bps, job.worker_bandwidth_bps, {}, counts),
        servers_(job) {
    const size_t count = job.worker_bandwidth_bps.size();
    const auto iterations = static_cast<size_t>(job.iterations);
    result_.start_ns.resize(count * (iterations + 1));
    result_.backward_start_ns.resize(count * iterations);
    for (size_t worker = 0; worker < count; ++worker) {
      workers_.emplace_back(plan_, worker, make(), events_,
                            result_.start_ns.data() + worker * (iterations + 1),
                            result_.backward_start_ns.data() + worker * iterations);
    }
  }

  Result Run() {
    TimeNs now = 0;
    for (Worker& worker : workers_) worker.Start(now);
    for (;;) {
      const TimeNs event_ns = events_.empty() ? kNever : events_.first().time;
      const TimeNs next_ns = std::min({event_ns, pushes_.next_ns(), answers_.next_ns()});
      if (next_ns > now && AskOne(now)) continue;
      if (next_ns == kNever) break;
      now = next_ns;
      ++result_.events;
      if (pushes_.next_ns() == now) {
        if (const auto* message = pushes_.Advance(now)) Sent(*message, now);
      } else if (answers_.next_ns() == now) {
        if (const auto* message = answers_.Advance(now)) Answered(*message, now);
      } else {
        Handle(events_.Take());
      }
    }
    return Finish(now);
  }

 private:
  // What a message is, in its tag beside the partition.
  static constexpr uint64_t kRequest = uint64_t{1} << 62;          // to pull
  static constexpr uint64_t kAcknowledgement = uint64_t{1} << 63;  // of a push

  bool AskOne(TimeNs now) {
    for (size_t id = 0; id < workers_.size(); ++id) {
      if (!workers_[id].wants_to_ask()) continue;
      workers_[id].Ask(now, [&](size_t partition) { Push(id, partition, now); });
      return true;
    }
    return false;
  }

  void Push(size_t worker, size_t partition, TimeNs now) {
    pushes_.Send({.sender = static_cast<uint32_t>(worker),
                  .receiver = static_cast<uint32_t>(job_.server[partition]),
                  .tag = partition,
                  .bytes = job_.size_bytes[partition],
                  .cost_ns = job_.message_cost_ns},
                 now);
  }

  // The last byte of a push, or a request, has left.
  void Sent(const Fabric::Message& message, TimeNs now) {
    const Kind kind = (message.tag & kRequest) != 0 ? Kind::kRequested : Kind::kArrived;
    events_.Add({now + job_.delay_ns, kind, message.sender, message.tag & ~kRequest});
  }

  void Answered(const Fabric::Message& message, TimeNs now) {
    const Kind kind = (message.tag & kAcknowledgement) != 0 ? Kind::kAcked : Kind::kPulled;
    events_.Add({now + job_.delay_ns, kind, message.receiver, message.tag & ~kAcknowledgement});
  }

  void Handle(const Event& event) {
    Worker& worker = workers_[event.worker()];
    const size_t partition = event.partition();
    const TimeNs now = event.time;
    switch (event.kind()) {
      case Kind::kArrived:
        return Arrived(event.worker(), partition, now);
      case Kind::kRequested:
        if (servers_.OnRequest(event.worker(), partition)) Answer(event.worker(), partition, now);
        return;
      case Kind::kSummed:
        return Summed(partition, now);
      case Kind::kAcked:
        worker.OnAcked(partition, now);
        if (job_.stock_transport) Request(event.worker(), partition, now);
        return;
      case Kind::kPulled:
        return worker.OnPulled(partition, now);
      case Kind::kReady:
        return worker.OnReady(now);
      case Kind::kEnded:
        return worker.OnEnded(now);
      case Kind::kAsk:
        return worker.OnAsk(now);
    }
  }

  void Arrived(size_t worker, size_t partition, TimeNs now) {
    if (job_.stock_transport) {
      Reply(worker, partition, kAcknowledgement, now);
    } else {
      events_.Add({now + job_.delay_ns, Kind::kAcked, worker, partition});
      if (servers_.OnRequest(worker, partition)) Answer(worker, partition, now);
    }
    const TimeNs summed_ns = servers_.Add(partition, now);
    if (summed_ns == now) return Summed(partition, now);
    events_.Add({summed_ns, Kind::kSummed, worker, partition});
  }

  void Request(size_t worker, size_t partition, TimeNs now) {
    pushes_.Send({.sender = static_cast<uint32_t>(worker),
                  .receiver = static_cast<uint32_t>(job_.server[partition]),
                  .tag = partition | kRequest},
                 now);
  }

  void Summed(size_t partition, TimeNs now) {
    servers_.OnSummed(partition, [&](size_t worker) { Answer(worker, partition, now); });
  }

  void Answer(size_t worker, size_t partition, TimeNs now) {
    answers_.Send({.sender = static_cast<uint32_t>(job_.server[partition]),
                   .receiver = static_cast<uint32_t>(worker),
                   .tag = partition,
                   .bytes = job_.size_bytes[partition],
                   .cost_ns = job_.message_cost_ns,
                   .urgency = job_.answer_by_priority ? plan_.tensor[partition] : 0},
                  now);
  }

  // Without bytes or cost.
  void Reply(size_t worker, size_t partition, uint64_t what, TimeNs now) {
    answers_.Send({.sender = static_cast<uint32_t>(job_.server[partition]),
                   .receiver = static_cast<uint32_t>(worker),
                   .tag = partition | what},
                  now);
  }

  Result Finish(TimeNs now) {
    for (size_t id = 0; id < workers_.size(); ++id) {
      if (workers_[id].done() && workers_[id].pending() == 0) continue;
      throw std::logic_error("simulated job: worker " + std::to_string(id) + " keeps " +
                             std::to_string(workers_[id].pending()) +
                             " partitions that its policy does not send");
    }
    result_.end_ns = now;
    for (size_t id = 0; id < workers_.size(); ++id) {
      result_.up.push_back(pushes_.sender_use(id));
      result_.down.push_back(answers_.receiver_use(id));
      result_.transfers.push_back(workers_[id].TakeRecord());
    }
    for (size_t id = 0; id < job_.server_bandwidth_bps.size(); ++id) {
      result_.up.push_back(answers_.sender_use(id));
      result_.down.push_back(pushes_.receiver_use(id));
    }
    return std::move(result_);
  }

  const Job& job_;
  const Plan plan_;
  Events events_;
  Fabric pushes_;
  Fabric answers_;
  Servers servers_;
  std::deque<Worker> workers_;
  Result result_;
};

}  // namespace

Result Simulate(const Job& job, const PolicyMaker& make) {
  Validate(job);
  const Fold fold(job);
  return fold.Unfold(Simulation(fold.job(), fold.counts(), make).Run());
}

}  // namespace prophet::engine
