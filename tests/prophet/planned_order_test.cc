#include "prophet/policy/planned_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "random.h"

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

// A worker whose tensors become ready as planned, on a link `speed` times as fast: the pairs of
// what was sent and what was more urgent, there no later, and still waiting.
int Overtakings(const std::vector<ReadyTime>& times, std::vector<Item> unsent, double speed) {
  PlannedOrder order;
  order.SetReadyTimes(times);
  order.SetBandwidth(1.0);
  const auto ready_ns = [&](const Item& item) {
    return std::find_if(times.begin(), times.end(),
                        [&](const ReadyTime& time) { return time.tensor == TensorOf(item.key); })
        ->ready_ns;
  };
  std::sort(unsent.begin(), unsent.end(),
            [&](const Item& a, const Item& b) { return ready_ns(a) < ready_ns(b); });
  for (const Item& item : unsent) order.OnReady(item, ready_ns(item));
  order.OnIteration({});
  int overtakings = 0;
  for (double now_ns = 0; !unsent.empty();) {
    const auto is_ready = [&](const Item& item) {
      return static_cast<double>(ready_ns(item)) <= now_ns;
    };
    const auto waiting = std::stable_partition(unsent.begin(), unsent.end(), std::not_fn(is_ready));
    if (waiting == unsent.end()) {
      now_ns = static_cast<double>(ready_ns(unsent.front()));
      continue;
    }
    const auto sent = std::min_element(waiting, unsent.end(), [&](const Item& a, const Item& b) {
      return std::pair(order.RankOf(a), a.key) < std::pair(order.RankOf(b), b.key);
    });
    overtakings += static_cast<int>(std::count_if(waiting, unsent.end(), [&](const Item& other) {
      return RankByPriority(other) < RankByPriority(*sent) && ready_ns(other) <= ready_ns(*sent);
    }));
    now_ns += static_cast<double>(sent->bytes) / speed;
    unsent.erase(sent);
  }
  return overtakings;
}

// With backward passes from a fraction of a partition's time to that of hundreds, and any order in
// which tensors become ready.
TEST(PlannedOrderProperty, NothingWaitsForWhatIsLessUrgentAndCameLater) {
  Random random(7);
  for (int scenario = 0; scenario < 2000; ++scenario) {
    const TimeNs span_ns = random.Chance(50) ? 1000 : 200'000;
    std::vector<ReadyTime> times;
    std::vector<Item> items;
    const auto tensors = static_cast<uint64_t>(random.Uniform(2, 21));
    for (uint64_t tensor = 1; tensor <= tensors; ++tensor) {
      times.push_back(Ready(tensor, random.Uniform(0, span_ns)));
      const auto partitions = static_cast<uint64_t>(random.Uniform(1, random.Chance(25) ? 60 : 4));
      for (uint64_t partition = 0; partition < partitions; ++partition)
        items.push_back(Partition(tensor, partition));
    }
    const double speed = static_cast<double>(random.Uniform(85, 300)) / 100;
    ASSERT_EQ(Overtakings(times, items, speed), 0) << "scenario " << scenario;
  }
}

// All at once, as when gradients are reduced in one bucket, and the least urgent by far the
// largest.
TEST(PlannedOrderProperty, ALargeTensorAmongManyReleasedAtOnceWaits) {
  const std::vector<ReadyTime> times = {Ready(1, 0), Ready(2, 20), Ready(9, 400), Ready(3, 1900)};
  std::vector<Item> items;
  for (const uint64_t tensor : {1, 2, 3}) {
    for (const uint64_t partition : {0, 1, 2}) items.push_back(Partition(tensor, partition));
  }
  for (uint64_t partition = 0; partition < 50; ++partition)
    items.push_back(Partition(9, partition));
  EXPECT_EQ(Overtakings(times, items, 1.0), 0);
}

}  // namespace
}  // namespace prophet
