// What is scheduled: one partition of one tensor, on its way to one server. Plain data.
#pragma once

#include <cstdint>

namespace prophet {

// Nanoseconds on the driver's clock: the steady clock in the plug-in, a virtual one elsewhere.
// Only differences are meaningful, and time never goes back between two calls of one policy.
using TimeNs = int64_t;

struct Item {
  uint64_t key = 0;      // unique among pending and in-flight items: (tensor << 16) | partition
  uint32_t server = 0;   // any number; each distinct one has its own queue
  int32_t priority = 0;  // larger is more urgent; ties: the smaller key first
  uint64_t bytes = 0;    // payload

  friend bool operator==(const Item&, const Item&) = default;
};

// The declared tensor a partition belongs to.
constexpr uint64_t TensorOf(uint64_t key) { return key >> 16; }
// Its number within the tensor.
constexpr uint16_t PartitionOf(uint64_t key) { return static_cast<uint16_t>(key); }

// Smaller goes first: strict priority.
constexpr int64_t RankByPriority(const Item& item) { return -int64_t{item.priority}; }

// Priorities from 0 up mark what has no place in the forward order: unknown tensors, broadcasts,
// metrics. They go before everything else, because somebody may be blocked on them.
constexpr bool IsUnranked(const Item& item) { return item.priority >= 0; }

}  // namespace prophet
