#include "prophet/planned_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace prophet {
namespace {

constexpr uint64_t Key(uint64_t tensor, uint64_t partition) { return tensor << 16 | partition; }

// Tensor n has priority -n. Links carry one byte per nanosecond, partitions have 1000.
Item Partition(uint64_t tensor, uint64_t partition) {
  return {.key = Key(tensor, partition), .priority = -static_cast<int32_t>(tensor), .bytes = 1000};
}

ReadyTime Ready(uint64_t tensor, TimeNs ready_ns) {
  return {.tensor = tensor, .priority = -static_cast<int32_t>(tensor), .ready_ns = ready_ns};
}

// Six tensors, the last first, one every `interval_ns`, each with 4 partitions; the link takes the
// time of 3 between two.
class PlannedOrderTest : public testing::Test {
 protected:
  static constexpr uint64_t kTensors = 6, kPartitions = 4;
  static constexpr TimeNs kIntervalNs = 3000;

  // The order in which a worker sends that is ready and has all at once.
  std::vector<uint64_t> Iterate(TimeNs interval_ns, std::optional<double> link_bytes_per_ns = {}) {
    std::vector<Item> items;
    for (uint64_t tensor = kTensors; tensor > 0; --tensor) {
      for (uint64_t partition = 0; partition < kPartitions; ++partition) {
        items.push_back(Partition(tensor, partition));
        order_.OnReady(items.back(), now_);
      }
      now_ += interval_ns;
    }
    std::stable_sort(items.begin(), items.end(), [&](const Item& a, const Item& b) {
      return order_.RankOf(a) < order_.RankOf(b);
    });
    order_.OnIteration(link_bytes_per_ns);
    std::vector<uint64_t> keys;
    for (const Item& item : items) keys.push_back(item.key);
    return keys;
  }

  void GivePlan() {
    std::vector<ReadyTime> times;
    for (uint64_t tensor = kTensors; tensor > 0; --tensor) {
      times.push_back(Ready(tensor, static_cast<TimeNs>(kTensors - tensor) * kIntervalNs));
    }
    order_.SetReadyTimes(times);
    order_.SetBandwidth(1.0);
  }

  static std::vector<uint64_t> ByPriority() {
    std::vector<uint64_t> keys;
    for (uint64_t tensor = 1; tensor <= kTensors; ++tensor) {
      for (uint64_t partition = 0; partition < kPartitions; ++partition) {
        keys.push_back(Key(tensor, partition));
      }
    }
    return keys;
  }

  // The last tensor to come at once; of the others three partitions each, as they came; what was
  // left of each, by priority.
  static std::vector<uint64_t> Planned() {
    std::vector<uint64_t> keys;
    for (uint64_t partition = 0; partition < kPartitions; ++partition) {
      keys.push_back(Key(1, partition));
    }
    for (uint64_t tensor = kTensors; tensor > 1; --tensor) {
      for (uint64_t partition = 0; partition < 3; ++partition) {
        keys.push_back(Key(tensor, partition));
      }
    }
    for (uint64_t tensor = 2; tensor <= kTensors; ++tensor) keys.push_back(Key(tensor, 3));
    return keys;
  }

  PlannedOrder order_;
  TimeNs now_ = 0;
};

TEST_F(PlannedOrderTest, ByPriorityWithoutAPlan) {
  EXPECT_EQ(Iterate(kIntervalNs), ByPriority());
  EXPECT_EQ(Iterate(kIntervalNs), ByPriority());
}

TEST_F(PlannedOrderTest, AsStrictPriorityWouldOnThePlannedLink) {
  GivePlan();
  EXPECT_EQ(Iterate(kIntervalNs), ByPriority());  // what there is, is not known yet
  EXPECT_EQ(Iterate(kIntervalNs), Planned());
}

// Which is all that it is for.
TEST_F(PlannedOrderTest, DoesNotDependOnWhenThingsBecomeReady) {
  GivePlan();
  Iterate(kIntervalNs);
  EXPECT_EQ(Iterate(kIntervalNs * 9 / 10), Planned());
  EXPECT_EQ(Iterate(kIntervalNs * 5), Planned());
}

TEST_F(PlannedOrderTest, ByPriorityOnALinkMuchSlowerThanPlanned) {
  GivePlan();
  Iterate(kIntervalNs, 0.74);
  EXPECT_EQ(Iterate(kIntervalNs, 0.76), ByPriority());
  EXPECT_EQ(Iterate(kIntervalNs, 10.0), Planned());
  EXPECT_EQ(Iterate(kIntervalNs), Planned());
}

TEST_F(PlannedOrderTest, ByPriorityAfterABackwardMuchShorterThanPlanned) {
  GivePlan();
  Iterate(kIntervalNs / 2);
  EXPECT_EQ(Iterate(kIntervalNs), ByPriority());
  EXPECT_EQ(Iterate(kIntervalNs), Planned());
}

TEST_F(PlannedOrderTest, WhatComesNoMoreIsForgotten) {
  GivePlan();
  const Item last = Partition(kTensors, kPartitions);
  order_.OnReady(last, now_);
  Iterate(kIntervalNs);
  EXPECT_EQ(order_.RankOf(last), order_.RankOf(Partition(kTensors, kPartitions - 1)));
  Iterate(kIntervalNs);
  EXPECT_EQ(order_.RankOf(last), kTensors);
}

TEST_F(PlannedOrderTest, UnrankedItemsAndUnknownTensorsGoByPriority) {
  GivePlan();
  const Item unranked{.key = Key(50, 0), .priority = 0, .bytes = 1000};
  const Item unknown = Partition(40, 0);
  order_.OnReady(unranked, 0);
  order_.OnReady(unknown, 0);
  Iterate(kIntervalNs);
  EXPECT_EQ(order_.RankOf(unranked), 0);
  EXPECT_EQ(order_.RankOf(unknown), 40);
  EXPECT_LT(order_.RankOf(unranked), order_.RankOf(Partition(1, 0)));
}

}  // namespace
}  // namespace prophet
