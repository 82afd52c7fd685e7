// Sharing of links: cases worked by hand, and max-min fairness of random traffic by its definition.
#include "prophet/engine/fabric.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "jobs.h"

namespace prophet::engine {
namespace {

using Rates = std::vector<int64_t>;

// Tags of messages and when their last byte left, in that order.
std::vector<std::pair<uint64_t, TimeNs>> Drain(Fabric& fabric) {
  std::vector<std::pair<uint64_t, TimeNs>> ends;
  for (TimeNs now = fabric.next_ns(); now != kNever; now = fabric.next_ns()) {
    if (const auto* message = fabric.Advance(now)) ends.emplace_back(message->tag, now);
  }
  return ends;
}
using Ends = std::vector<std::pair<uint64_t, TimeNs>>;

TEST(Fabric, MessagesOfOneFlowFollowEachOtherCostThenBytes) {
  Fabric fabric(Rates{kBytePerNs}, Rates{0});
  fabric.Send({.tag = 1, .bytes = 100, .cost_ns = 7}, 1000);
  fabric.Send({.tag = 2, .bytes = 50, .cost_ns = 7}, 1000);
  EXPECT_EQ(Drain(fabric), (Ends{{1, 1107}, {2, 1164}}));
  EXPECT_EQ(fabric.sender_use(0).busy_ns, 164);
  EXPECT_EQ(fabric.receiver_use(0).busy_ns, 150);
  EXPECT_EQ(fabric.sender_use(0).bytes, 150);
}

TEST(Fabric, TheSlowerEndOfAFlowCounts) {
  Fabric fabric(Rates{kBytePerNs}, Rates{kBytePerNs / 4});
  fabric.Send({.tag = 1, .bytes = 100, .cost_ns = 8}, 0);
  EXPECT_EQ(Drain(fabric), (Ends{{1, 8 + 400}}));
}

TEST(Fabric, TwoFlowsOfASenderShareIt) {
  Fabric fabric(Rates{kBytePerNs}, Rates{0, 0});
  fabric.Send({.receiver = 0, .tag = 1, .bytes = 100}, 0);
  fabric.Send({.receiver = 1, .tag = 2, .bytes = 300}, 0);
  EXPECT_EQ(Drain(fabric), (Ends{{1, 200}, {2, 400}}));  // the second alone from 200 on
}

TEST(Fabric, ACostIsSharedLikeBytes) {
  Fabric fabric(Rates{kBytePerNs}, Rates{0, 0});
  fabric.Send({.receiver = 0, .tag = 1, .bytes = 0, .cost_ns = 100}, 0);
  fabric.Send({.receiver = 1, .tag = 2, .bytes = 300}, 0);
  EXPECT_EQ(Drain(fabric), (Ends{{1, 200}, {2, 400}}));
}

TEST(Fabric, WithoutALimitOnlyCostsTakeTimeOneAfterAnother) {
  Fabric fabric(Rates{0}, Rates{0, 0});
  fabric.Send({.receiver = 0, .tag = 1, .bytes = 1 << 30, .cost_ns = 100}, 5);
  fabric.Send({.receiver = 1, .tag = 2, .bytes = 1 << 30, .cost_ns = 100}, 5);
  EXPECT_EQ(Drain(fabric), (Ends{{1, 205}, {2, 205}}));
  fabric.Send({.tag = 3, .bytes = 1 << 30}, 300);
  EXPECT_EQ(Drain(fabric), (Ends{{3, 300}}));
}

TEST(Fabric, MaxMinGivesTheRestToWhoCanUseIt) {
  // Flows 0->0, 1->0, 1->1. Receiver 0 (2 bytes/ns) gives 1 to each of its two; sender 1 (4
  // bytes/ns) has 3 left for its other flow.
  Fabric fabric(Rates{4 * kBytePerNs, 4 * kBytePerNs}, Rates{2 * kBytePerNs, 4 * kBytePerNs});
  fabric.Send({.sender = 0, .receiver = 0, .bytes = 1000}, 0);
  fabric.Send({.sender = 1, .receiver = 0, .bytes = 1000}, 0);
  fabric.Send({.sender = 1, .receiver = 1, .bytes = 1000}, 0);
  EXPECT_EQ(fabric.rate_bps(0, 0), kBytePerNs);
  EXPECT_EQ(fabric.rate_bps(1, 0), kBytePerNs);
  EXPECT_EQ(fabric.rate_bps(1, 1), 3 * kBytePerNs);
}

TEST(Fabric, UrgentMessagesOvertakeWhatWaitsNotWhatIsUnderWay) {
  Fabric fabric(Rates{kBytePerNs}, Rates{0});
  fabric.Send({.tag = 1, .bytes = 10, .urgency = 9}, 0);
  fabric.Send({.tag = 2, .bytes = 10, .urgency = 5}, 0);
  fabric.Send({.tag = 3, .bytes = 10, .urgency = 2}, 0);
  fabric.Send({.tag = 4, .bytes = 10, .urgency = 5}, 0);
  EXPECT_EQ(Drain(fabric), (Ends{{1, 10}, {3, 20}, {2, 30}, {4, 40}}));
}

TEST(Fabric, TheLargestWorkIsExact) {
  Fabric fabric(Rates{kMinBandwidthBps}, Rates{0});
  fabric.Send({.tag = 1, .bytes = kMaxMessageBytes, .cost_ns = kMaxMessageCostNs}, 0);
  EXPECT_EQ(Drain(fabric), (Ends{{1, kMaxMessageCostNs + kMaxMessageBytes * 1'000'000}}));
  Fabric fast(Rates{0}, Rates{kMaxBandwidthBps});
  fast.Send({.tag = 1, .bytes = kMaxMessageBytes, .cost_ns = kMaxMessageCostNs}, 0);
  // 2^31 - 1 bytes at 2^40 bits/s: 15,625,000 ns less 0.007.
  EXPECT_EQ(Drain(fast), (Ends{{1, kMaxMessageCostNs + 15'625'000}}));
}

// Rates as the definition has them: no link above its rate; and every flow has a link that is full,
// on which no flow gets more than it does. Shares are rounded down: full within as many bits per
// second as there are flows.
TEST(Fabric, RandomTrafficIsSharedMaxMinFairly) {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    const auto senders = static_cast<size_t>(random.Uniform(1, 4));
    const auto receivers = static_cast<size_t>(random.Uniform(1, 4));
    Rates up(senders), down(receivers);
    for (int64_t& rate : up) rate = random.Uniform(1, 9) * 1'000'003;
    for (int64_t& rate : down) rate = random.Uniform(1, 9) * 1'000'003;
    Fabric fabric(up, down);
    std::map<std::pair<size_t, size_t>, int> queued;
    TimeNs now = 0;
    for (int step = 0; step < 40; ++step) {
      if (fabric.next_ns() == kNever || random.Chance(50)) {
        const auto from =
            static_cast<uint32_t>(random.Uniform(0, static_cast<int64_t>(senders) - 1));
        const auto to =
            static_cast<uint32_t>(random.Uniform(0, static_cast<int64_t>(receivers) - 1));
        fabric.Send({.sender = from, .receiver = to, .bytes = random.Uniform(1, 100)}, now);
        ++queued[{from, to}];
      } else {
        now = fabric.next_ns();
        const auto* message = fabric.Advance(now);
        ASSERT_NE(message, nullptr);
        --queued[{message->sender, message->receiver}];
      }
      const auto slack = static_cast<int64_t>(senders * receivers);
      Rates used_up(senders), used_down(receivers), most_up(senders), most_down(receivers);
      for (size_t from = 0; from < senders; ++from) {
        for (size_t to = 0; to < receivers; ++to) {
          const int64_t rate = fabric.rate_bps(from, to);
          ASSERT_EQ(rate > 0, (queued[{from, to}] > 0));
          used_up[from] += rate;
          used_down[to] += rate;
          most_up[from] = std::max(most_up[from], rate);
          most_down[to] = std::max(most_down[to], rate);
        }
      }
      for (size_t from = 0; from < senders; ++from) {
        ASSERT_LE(used_up[from], up[from]);
        for (size_t to = 0; to < receivers; ++to) {
          ASSERT_LE(used_down[to], down[to]);
          const int64_t rate = fabric.rate_bps(from, to);
          if (rate == 0) continue;
          const bool full_up = used_up[from] + slack >= up[from] && most_up[from] <= rate + slack;
          const bool full_down = used_down[to] + slack >= down[to] && most_down[to] <= rate + slack;
          ASSERT_TRUE(full_up || full_down) << "flow " << from << "->" << to;
        }
      }
    }
  }
}

}  // namespace
}  // namespace prophet::engine
