// Which server sums each partition of a tensor, where a strategy says so: what patch 0051 asks
// before BytePS hashes a key.
//
// All workers are told the same before any of them sends the tensor for the first time, because the
// server of a key waits for that key from all of them. Servers need not be told.
//
// Threads: Place() by the one that declares tensors, ServerOf() by those of BytePS, which hold its
// lock of keys, Clear() when no other one of BytePS is left. One mutex guards the table; nothing is
// called under it.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace byteprophet {

class Placement {
 public:
  static Placement& OfProcess() {
    static Placement placement;
    return placement;
  }

  // Partition n of `tensor`, its number in BytePS, goes to servers[n]; behind the last of them it
  // begins again with the first. None: BytePS' hash decides. False, and nothing changes, if the
  // tensor was sent already, to other servers.
  bool Place(uint64_t tensor, std::vector<int> servers) {
    std::lock_guard<std::mutex> lock(mutex_);
    Tensor& known = tensors_[tensor];
    if (known.sent && known.servers != servers) return false;
    known.servers = std::move(servers);
    return true;
  }

  // The server of a key that is sent for the first time; -1: BytePS' hash decides.
  int ServerOf(uint64_t key) {
    std::lock_guard<std::mutex> lock(mutex_);
    Tensor& known = tensors_[key >> 16];
    known.sent = true;
    if (known.servers.empty()) return -1;
    return known.servers[(key & 0xFFFF) % known.servers.size()];
  }

  // Forgets all tensors, as BytePS does at shutdown and suspension: it numbers them anew.
  void Clear() {
    std::lock_guard<std::mutex> lock(mutex_);
    tensors_.clear();
  }

 private:
  struct Tensor {
    std::vector<int> servers;
    bool sent = false;
  };

  std::mutex mutex_;
  std::unordered_map<uint64_t, Tensor> tensors_;
};

}  // namespace byteprophet
