#include "job_graph.h"

#include <algorithm>
#include <numeric>

namespace prophet::graph {
namespace {

class Builder {
 public:
  explicit Builder(const engine::OwnedJob& job)
      : job_(job),
        workers_(job.worker_bandwidth_bps.size()),
        servers_(job.server_bandwidth_bps.size()) {
    out_.ways.resize(workers_);
    out_.begins.resize(workers_);
    AddNetwork();
  }

  JobGraph Build() {
    // What each worker's forward layers wait for.
    std::vector<std::vector<std::vector<int32_t>>> arrived(
        workers_, std::vector<std::vector<int32_t>>(job_.forward_ns.size()));
    std::vector<int32_t> last(workers_, -1);
    for (int64_t iteration = 0; iteration < job_.rest.iterations; ++iteration) {
      for (size_t worker = 0; worker < workers_; ++worker) {
        last[worker] = Compute(worker, last[worker], arrived[worker]);
      }
      arrived = AddServers();
    }
    return std::move(out_);
  }

 private:
  size_t Pair(size_t worker, size_t server) const { return worker * servers_ + server; }

  // As in the engine, links are numbered senders first, then receivers, in each direction.
  void AddNetwork() {
    std::vector<int32_t> push_from, push_to, answer_from, answer_to;
    for (const int64_t bps : job_.worker_bandwidth_bps) push_from.push_back(out_.graph.Link(bps));
    for (const int64_t bps : job_.server_bandwidth_bps) push_to.push_back(out_.graph.Link(bps));
    for (const int64_t bps : job_.server_bandwidth_bps) answer_from.push_back(out_.graph.Link(bps));
    for (const int64_t bps : job_.worker_bandwidth_bps) answer_to.push_back(out_.graph.Link(bps));
    for (size_t worker = 0; worker < workers_; ++worker) {
      for (size_t server = 0; server < servers_; ++server) {
        up_.push_back(out_.graph.Connection({push_from[worker], push_to[server]}, true));
        down_.push_back(out_.graph.Connection({answer_from[server], answer_to[worker]}, true,
                                              job_.rest.answer_by_priority));
      }
      gates_.push_back(out_.graph.Gate());
    }
    for (size_t i = 0; i < servers_ * static_cast<size_t>(job_.rest.sum_threads); ++i) {
      threads_.push_back(out_.graph.Serial());
    }
  }

  // Forward and backward of one iteration up to the pushes; the end of backward.
  int32_t Compute(size_t worker, int32_t before, const std::vector<std::vector<int32_t>>& arrived) {
    const int32_t begin = out_.graph.Add({.after = After(before)});
    out_.begins[worker].push_back(begin);
    if (before >= 0) out_.graph.Mark(begin, gates_[worker]);
    int32_t layer = begin;
    for (size_t tensor = 0; tensor < job_.forward_ns.size(); ++tensor) {
      std::vector<int32_t> after = arrived[tensor];
      after.push_back(layer);
      layer = out_.graph.Add({.duration = job_.forward_ns[tensor], .after = after});
    }
    auto& ways = out_.ways[worker].emplace_back();
    for (const size_t tensor : ByReadiness()) {
      const int32_t ready = out_.graph.Add({.duration = job_.ready_ns[tensor], .after = {layer}});
      for (size_t i = First(tensor); i < First(tensor + 1); ++i) {
        ways.push_back(Push(worker, tensor, i, ready));
      }
    }
    std::sort(ways.begin(), ways.end(), [](const Way& a, const Way& b) { return a.key < b.key; });
    return out_.graph.Add({.duration = job_.rest.backward_ns, .after = {layer}});
  }

  Way Push(size_t worker, size_t tensor, size_t partition, int32_t ready) {
    const auto server = static_cast<size_t>(job_.server[partition]);
    Way way{.key = engine::KeyOf(tensor, partition - First(tensor)), .row = rows_++};
    way.push = out_.graph.Add({.duration = job_.rest.message_cost_ns,
                               .device = up_[Pair(worker, server)],
                               .after = {ready},
                               .bytes = job_.size_bytes[partition],
                               .latency = job_.rest.delay_ns});
    way.acknowledgement = out_.graph.Add({.duration = job_.rest.delay_ns, .after = {way.push}});
    out_.graph.Guard(way.push, gates_[worker],
                     {.key = way.key,
                      .server = static_cast<uint32_t>(server),
                      .priority = engine::PriorityOf(static_cast<int64_t>(tensor))},
                     way.acknowledgement);
    return way;
  }

  // Sums and answers of one iteration; what arrived at each worker, per tensor.
  std::vector<std::vector<std::vector<int32_t>>> AddServers() {
    std::vector<std::vector<int32_t>> sums(job_.size_bytes.size());
    for (size_t worker = 0; worker < workers_; ++worker) {
      for (size_t i = 0; i < sums.size(); ++i) sums[i].push_back(Sum(worker, i));
    }
    std::vector<std::vector<std::vector<int32_t>>> arrived(workers_);
    for (size_t worker = 0; worker < workers_; ++worker) {
      for (size_t tensor = 0; tensor < job_.forward_ns.size(); ++tensor) {
        auto& of_tensor = arrived[worker].emplace_back();
        for (size_t i = First(tensor); i < First(tensor + 1); ++i) {
          const auto server = static_cast<size_t>(job_.server[i]);
          const int32_t pull =
              out_.graph.Add({.duration = job_.rest.message_cost_ns,
                              .device = down_[Pair(worker, server)],
                              .after = sums[i],
                              .bytes = job_.size_bytes[i],
                              .latency = job_.rest.delay_ns,
                              .priority = engine::PriorityOf(static_cast<int64_t>(tensor))});
          out_.ways[worker].back()[i].pull = pull;
          of_tensor.push_back(pull);
        }
      }
    }
    return arrived;
  }

  int32_t Sum(size_t worker, size_t partition) {
    const int32_t push = out_.ways[worker].back()[partition].push;
    if (job_.rest.sum_bps == 0) return out_.graph.Add({.after = {push}});
    const auto threads = static_cast<size_t>(job_.rest.sum_threads);
    const auto server = static_cast<size_t>(job_.server[partition]);
    const TimeNs duration =
        (job_.size_bytes[partition] * 8'000'000'000 + job_.rest.sum_bps - 1) / job_.rest.sum_bps;
    return out_.graph.Add({.duration = duration,
                           .device = threads_[server * threads + partition % threads],
                           .after = {push}});
  }

  size_t First(size_t tensor) const { return static_cast<size_t>(job_.first_partition[tensor]); }
  static std::vector<int32_t> After(int32_t operation) {
    return operation < 0 ? std::vector<int32_t>{} : std::vector<int32_t>{operation};
  }
  // Those of one time: the last layer's first.
  std::vector<size_t> ByReadiness() const {
    std::vector<size_t> order(job_.ready_ns.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::reverse(order.begin(), order.end());
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return job_.ready_ns[a] < job_.ready_ns[b]; });
    return order;
  }

  const engine::OwnedJob& job_;
  const size_t workers_;
  const size_t servers_;
  JobGraph out_;
  std::vector<int32_t> up_, down_, threads_, gates_;
  size_t rows_ = 0;
};

}  // namespace

JobGraph GraphOf(const engine::OwnedJob& job) { return Builder(job).Build(); }

}  // namespace prophet::graph
