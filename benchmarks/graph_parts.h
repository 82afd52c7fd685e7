// Graphs of a million operations to replay, put together from parts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "prophet/graph/graph.h"

namespace prophet::graph {

inline constexpr int64_t kBps = 8'000'000'000;

// Operations are added in an order in which they could run; so their successors come in rows.
class Builder {
 public:
  int32_t Link() {
    link_bps_.push_back(kBps);
    return static_cast<int32_t>(link_bps_.size()) - 1;
  }
  int32_t Serial(int64_t units) { return AddDevice({.units = units}); }
  int32_t Connection(int32_t from, int32_t to) {
    routes_.emplace_back(std::vector<int32_t>{from, to});
    return AddDevice({.kind = Device::Kind::kConnection});
  }
  int32_t Add(int32_t device, TimeNs duration, int64_t bytes = 0) {
    device_.push_back(device);
    duration_.push_back(duration);
    size_.push_back(bytes);
    return static_cast<int32_t>(device_.size()) - 1;
  }
  void Depend(int32_t before, int32_t after) {
    if (before >= 0) edges_.emplace_back(before, after);
  }
  void Guard(int32_t gate, const Item& item, int32_t operation, int32_t acked_by) {
    gates_ = std::max(gates_, gate + 1);
    gate_.push_back(gate);
    key_.push_back(item.key);
    server_.push_back(item.server);
    priority_.push_back(item.priority);
    gated_.push_back(operation);
    acked_by_.push_back(acked_by);
  }
  int64_t size() const { return static_cast<int64_t>(device_.size()); }
  // A number that looks random, from 1 to `most`.
  TimeNs Some(TimeNs most) {
    random_ = random_ * 6364136223846793005 + 1442695040888963407;
    return 1 + static_cast<TimeNs>((random_ >> 33) % static_cast<uint64_t>(most));
  }

  Graph Freeze() {
    first_.assign(device_.size() + 1, 0);
    for (const auto& [before, after] : edges_) ++first_[static_cast<size_t>(before) + 1];
    for (size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
    successor_.resize(edges_.size());
    std::vector<int64_t> place(first_.begin(), first_.end() - 1);
    for (const auto& [before, after] : edges_) {
      successor_[static_cast<size_t>(place[static_cast<size_t>(before)]++)] = after;
    }
    size_t route = 0;
    for (Device& device : devices_) {
      if (device.kind == Device::Kind::kConnection) device.route = routes_[route++];
    }
    return {.duration_ns = duration_,
            .device = device_,
            .size_bytes = size_,
            .first_successor = first_,
            .successor = successor_,
            .devices = devices_,
            .link_bps = link_bps_,
            .gated_operation = gated_,
            .gated_gate = gate_,
            .gated_key = key_,
            .gated_server = server_,
            .gated_priority = priority_,
            .gated_acked_by = acked_by_,
            .gates = gates_};
  }

 private:
  int32_t AddDevice(const Device& device) {
    devices_.push_back(device);
    return static_cast<int32_t>(devices_.size()) - 1;
  }

  std::vector<Device> devices_;
  std::vector<std::vector<int32_t>> routes_;
  std::vector<int64_t> link_bps_, duration_, size_, first_;
  std::vector<int32_t> device_, successor_, gate_, priority_, gated_, acked_by_;
  std::vector<uint64_t> key_;
  std::vector<uint32_t> server_;
  std::vector<std::pair<int32_t, int32_t>> edges_;
  int32_t gates_ = 0;
  uint64_t random_ = 1;
};

class Chains {
 public:
  explicit Chains(Builder& to) : to_(to), last_(64, -1) {
    for (size_t i = 0; i < last_.size(); ++i) devices_.push_back(to.Serial(1));
  }
  void Add() {  // 64 operations
    for (size_t i = 0; i < last_.size(); ++i) {
      const int32_t operation = to_.Add(devices_[i], to_.Some(10'000));
      to_.Depend(last_[i], operation);
      if (to_.Some(4) == 1) to_.Depend(last_[(i + 1) % last_.size()], operation);
      last_[i] = operation;
    }
  }

 private:
  Builder& to_;
  std::vector<int32_t> devices_, last_;
};

class ForkJoin {
 public:
  explicit ForkJoin(Builder& to) : to_(to) {
    for (int i = 0; i < 16; ++i) devices_.push_back(to.Serial(4));
  }
  void Add() {  // 100 operations
    const int32_t fork = to_.Add(-1, 10);
    to_.Depend(last_, fork);
    for (size_t i = 0; i < 98; ++i) {
      to_.Depend(fork, to_.Add(devices_[i % devices_.size()], to_.Some(10'000)));
    }
    last_ = to_.Add(-1, 10);
    for (int32_t i = 1; i <= 98; ++i) to_.Depend(fork + i, last_);
  }

 private:
  Builder& to_;
  std::vector<int32_t> devices_;
  int32_t last_ = -1;
};

class Flows {
 public:
  explicit Flows(Builder& to) : to_(to) {
    std::vector<int32_t> out, in;
    for (int i = 0; i < 16; ++i) out.push_back(to.Link());
    for (int i = 0; i < 16; ++i) in.push_back(to.Link());
    for (size_t i = 0; i < 48; ++i) {
      connections_.push_back(to.Connection(out[i % 16], in[(i * 5 + i / 16) % 16]));
    }
    last_.assign(connections_.size() * 3, -1);
  }
  void Add() {  // 144 operations
    for (size_t i = 0; i < last_.size(); ++i) {
      const int32_t flow = to_.Add(connections_[i % connections_.size()], 0, to_.Some(100'000));
      to_.Depend(last_[i], flow);
      last_[i] = flow;
    }
  }

 private:
  Builder& to_;
  std::vector<int32_t> connections_, last_;
};

class Training {
 public:
  static constexpr size_t kWorkers = 8, kServers = 2, kTensors = 50;
  Training(Builder& to, bool gated)
      : to_(to), gated_(gated), last_(kWorkers, -1), pulled_(kWorkers * kTensors, -1) {
    std::vector<int32_t> up, down, in, out;
    for (size_t i = 0; i < kWorkers; ++i) up.push_back(to.Link()), down.push_back(to.Link());
    for (size_t i = 0; i < kServers; ++i) in.push_back(to.Link()), out.push_back(to.Link());
    for (size_t i = 0; i < kServers; ++i) threads_.push_back(to.Serial(4));
    for (size_t worker = 0; worker < kWorkers; ++worker) {
      compute_.push_back(to.Serial(1));
      for (size_t server = 0; server < kServers; ++server) {
        push_.push_back(to.Connection(up[worker], in[server]));
        pull_.push_back(to.Connection(out[server], down[worker]));
      }
    }
  }
  void Add() {  // an iteration
    std::vector<int32_t> sums(kTensors, -1);
    for (size_t worker = 0; worker < kWorkers; ++worker) {
      int32_t& last = last_[worker];
      for (size_t tensor = 0; tensor < kTensors; ++tensor) {
        const int32_t forward = to_.Add(compute_[worker], to_.Some(50'000));
        to_.Depend(last, forward);
        to_.Depend(pulled_[worker * kTensors + tensor], forward);
        last = forward;
      }
      for (size_t tensor = kTensors; tensor-- > 0;) {
        const int32_t backward = to_.Add(compute_[worker], to_.Some(100'000));
        to_.Depend(last, backward);
        last = backward;
        Push(worker, tensor, backward, sums[tensor]);
      }
    }
    for (size_t worker = 0; worker < kWorkers; ++worker) {
      for (size_t tensor = 0; tensor < kTensors; ++tensor) {
        const size_t pair = worker * kServers + tensor % kServers;
        const int32_t pull = to_.Add(pull_[pair], 1000, 20'000);
        to_.Depend(sums[tensor], pull);
        pulled_[worker * kTensors + tensor] = pull;
      }
    }
  }

 private:
  void Push(size_t worker, size_t tensor, int32_t backward, int32_t& sum) {
    const size_t server = tensor % kServers;
    const int32_t push = to_.Add(push_[worker * kServers + server], 1000, 20'000);
    const int32_t heard = to_.Add(-1, 2000);
    const int32_t add = to_.Add(threads_[server], 3000);
    if (sum < 0) sum = to_.Add(-1, 0);
    to_.Depend(backward, push);
    to_.Depend(push, heard);
    to_.Depend(push, add);
    to_.Depend(add, sum);
    if (!gated_) return;
    to_.Guard(static_cast<int32_t>(worker),
              {.key = static_cast<uint64_t>(tensor) << 16,
               .server = static_cast<uint32_t>(server),
               .priority = -1 - static_cast<int32_t>(tensor)},
              push, heard);
  }

  Builder& to_;
  const bool gated_;
  std::vector<int32_t> compute_, push_, pull_, threads_, last_, pulled_;
};

}  // namespace prophet::graph
