#include "prophet/policy/prophet.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <optional>
#include <vector>

#include "drain.h"
#include "prophet/policy/fifo.h"
#include "prophet/registry.h"

namespace prophet {
namespace {

constexpr TimeNs kMs = 1'000'000;
constexpr int64_t kBitsPerSecond = 8'000'000'000;  // one byte per nanosecond

ProphetPolicy Make(int64_t floor, int64_t max, int64_t bandwidth_bps = kBitsPerSecond) {
  Settings settings = DefaultSettings("prophet");
  settings["window_floor_bytes"] = floor;
  settings["window_max_bytes"] = max;
  settings["bandwidth_bps"] = bandwidth_bps;
  return ProphetPolicy(settings);
}

// Tensor 1 (priority -1) is expected 1000 ns after the first ready item.
void ExpectUrgentAfter1000(Policy& policy) {
  const ReadyTime times[] = {{1, -1, 1000, 0}};
  policy.SetReadyTimes(times);
}

TEST(Prophet, WindowIsWhatTheLinkCarriesUntilTheNextUrgentRelease) {
  ProphetPolicy policy = Make(100, 5000);
  ExpectUrgentAfter1000(policy);
  EXPECT_EQ(policy.WindowBytes(0, -5, 0), 5000u);  // not started: nothing predicted
  policy.OnReady({.key = Key(5), .priority = -5, .bytes = 300}, 0);
  EXPECT_EQ(policy.WindowBytes(0, -5, 0), 1000u);
  EXPECT_EQ(policy.WindowBytes(0, -5, 400), 600u);
  EXPECT_EQ(policy.WindowBytes(0, -5, 950), 100u);   // the floor
  EXPECT_EQ(policy.WindowBytes(0, -5, 9000), 100u);  // late
  EXPECT_EQ(policy.WindowBytes(0, -1, 0), 5000u);    // nothing outranks it
  policy.OnReady({.key = Key(1), .priority = -1, .bytes = 300}, 800);
  EXPECT_EQ(policy.WindowBytes(0, -5, 800), 5000u);  // it has come
}

TEST(Prophet, AMessageMayOvershootButNotTwo) {
  ProphetPolicy policy = Make(100, 5000);
  ExpectUrgentAfter1000(policy);
  for (uint64_t tensor = 5; tensor < 15; ++tensor) {
    policy.OnReady({.key = Key(tensor), .priority = -static_cast<int32_t>(tensor), .bytes = 300},
                   0);
  }
  EXPECT_EQ(Drain(policy, 0), (Keys{Key(5), Key(6), Key(7), Key(8)}));  // 1200 bytes
  Ack(policy, Key(5), 300);
  EXPECT_EQ(Drain(policy, 300), Keys{});  // 900 in flight, window 700
  Ack(policy, Key(6), 600);
  Ack(policy, Key(7), 900);
  EXPECT_EQ(Drain(policy, 900), Keys{});  // 300 in flight, window 100
  Ack(policy, Key(8), 1200);
  EXPECT_EQ(Drain(policy, 1200), (Keys{Key(9)}));  // late, but never idle
}

TEST(Prophet, AFullWindowIsClosed) {
  ProphetPolicy policy = Make(600, 600);
  for (uint64_t part = 0; part < 3; ++part) {
    policy.OnReady({.key = Key(5, part), .priority = -5, .bytes = 300}, 0);
  }
  EXPECT_EQ(Drain(policy), (Keys{Key(5, 0), Key(5, 1)}));
}

TEST(Prophet, ServersShareTheGivenBandwidth) {
  ProphetPolicy policy = Make(100, 5000);
  ExpectUrgentAfter1000(policy);
  policy.OnReady({.key = Key(5), .server = 0, .priority = -5, .bytes = 1}, 0);
  EXPECT_EQ(policy.WindowBytes(0, -5, 0), 1000u);
  policy.OnReady({.key = Key(6), .server = 1, .priority = -6, .bytes = 1}, 0);
  EXPECT_EQ(policy.WindowBytes(0, -5, 0), 500u);
  Drain(policy, 0);
  Ack(policy, Key(6), 10);
  EXPECT_EQ(policy.WindowBytes(0, -5, 0), 1000u);
}

TEST(Prophet, TheServersShareOneWindowOfTheLink) {
  ProphetPolicy policy = Make(600, 600);
  for (uint64_t server = 0; server < 4; ++server) {
    for (uint64_t part = 0; part < 3; ++part) {
      policy.OnReady({.key = Key(5 + server, part),
                      .server = static_cast<uint32_t>(server),
                      .priority = -5 - static_cast<int32_t>(server),
                      .bytes = 300},
                     0);
    }
  }
  EXPECT_EQ(Drain(policy, 0), (Keys{Key(5, 0), Key(5, 1)}));  // and nothing for the other servers
  Ack(policy, Key(5, 0), 100);
  EXPECT_EQ(Drain(policy, 100), (Keys{Key(5, 2)}));
  Ack(policy, Key(5, 1), 200);
  EXPECT_EQ(Drain(policy, 200), (Keys{Key(6, 0)}));
}

TEST(Prophet, ASlowServerHoldsTheOthersUpOnlyForWhatTheLinkNeeds) {
  ProphetPolicy policy = Make(600, 600);
  for (uint64_t part = 0; part < 5; ++part) {
    policy.OnReady({.key = Key(5, part), .server = 0, .priority = -5, .bytes = 300}, 0);
    policy.OnReady({.key = Key(6, part), .server = 1, .priority = -6, .bytes = 300}, 0);
  }
  EXPECT_EQ(Drain(policy, 0), (Keys{Key(5, 0), Key(5, 1)}));
  const Decision wait = policy.Next(0);
  ASSERT_EQ(wait.kind, Decision::Kind::kWaitUntil);
  EXPECT_EQ(wait.ask_again_ns, 2 * 300 + kMs);  // twice what the link needs, and a millisecond
  // Server 0 says nothing at all.
  EXPECT_EQ(Drain(policy, wait.ask_again_ns), (Keys{Key(6, 0)}));
  EXPECT_EQ(Drain(policy, 2 * 600 + kMs), (Keys{Key(6, 1)}));  // its own window holds two
  Ack(policy, Key(6, 0), 2 * kMs);
  EXPECT_EQ(Drain(policy, 2 * kMs), (Keys{Key(6, 2)}));
}

TEST(Prophet, UnrankedItemsGoFirstAndWaitForNoWindow) {
  ProphetPolicy policy = Make(1, 1);
  policy.OnReady({.key = Key(5), .priority = -5, .bytes = 100}, 0);
  EXPECT_EQ(Drain(policy), (Keys{Key(5)}));
  policy.OnReady({.key = Key(6), .priority = -6, .bytes = 100}, 0);
  policy.OnReady({.key = Key(7), .priority = 0, .bytes = 100}, 0);
  policy.OnReady({.key = Key(8), .priority = 3, .bytes = 100}, 0);
  EXPECT_EQ(Drain(policy), (Keys{Key(8), Key(7)}));
  Ack(policy, Key(5));
  Ack(policy, Key(7));
  EXPECT_EQ(Drain(policy), Keys{});  // key 8 still fills the window
  Ack(policy, Key(8));
  EXPECT_EQ(Drain(policy), (Keys{Key(6)}));
}

TEST(Prophet, UnrankedItemsAreNoPartOfAnIteration) {
  ProphetPolicy policy = Make(100, 5000);
  ExpectUrgentAfter1000(policy);
  policy.OnReady({.key = Key(7), .priority = 0, .bytes = 1}, 0);
  EXPECT_EQ(policy.WindowBytes(0, -5, 0), 5000u);  // does not start one
  policy.OnReady({.key = Key(5), .priority = -5, .bytes = 1}, 400);
  policy.OnReady({.key = Key(1), .priority = -1, .bytes = 1}, 500);
  Drain(policy, 500);
  Ack(policy, Key(7), 600);
  policy.OnReady({.key = Key(7), .priority = 0, .bytes = 1}, 700);
  EXPECT_EQ(policy.WindowBytes(0, -5, 700), 5000u);  // nor, when it returns, end it
}

TEST(Prophet, EstimatesTheBandwidthOfEachServer) {
  ProphetPolicy policy = Make(100, 1 << 30, 0);
  ExpectUrgentAfter1000(policy);
  policy.OnReady({.key = Key(100), .priority = -100, .bytes = 1}, 0);
  EXPECT_EQ(policy.WindowBytes(0, -100, 0), 1u << 30);  // not known
  TimeNs now = 0;
  for (uint64_t tensor = 2; tensor < 20; ++tensor) {
    policy.OnReady({.key = Key(tensor), .priority = -200, .bytes = 1 << 20}, now);
  }
  for (const uint64_t key : Drain(policy, now)) Ack(policy, key, now += 2 * kMs);
  policy.OnIteration(now);
  policy.OnReady({.key = Key(100), .priority = -100, .bytes = 1}, now);
  // Tensor 1 is due 1000 ns from now; the link carries 1 MiB in 2 ms.
  EXPECT_EQ(policy.WindowBytes(0, -100, now), 524u);
  EXPECT_EQ(policy.WindowBytes(1, -100, now), 1u << 30);
}

TEST(Prophet, TwoInFlightAreEnoughForAnEstimate) {
  ProphetPolicy policy = Make(100, 1 << 30, 0);
  ExpectUrgentAfter1000(policy);
  TimeNs now = 0;
  for (uint64_t part = 0; part < 8; part += 2) {
    policy.OnReady({.key = Key(5, part), .priority = -5, .bytes = 1 << 20}, now);
    policy.OnReady({.key = Key(5, part + 1), .priority = -5, .bytes = 1 << 20}, now);
    for (const uint64_t key : Drain(policy, now)) Ack(policy, key, now += 2 * kMs);
  }
  policy.OnIteration(now);
  policy.OnReady({.key = Key(5), .priority = -5, .bytes = 1}, now);
  EXPECT_EQ(policy.WindowBytes(0, -5, now), 524u);
}

TEST(Prophet, TheFloorFollowsTheLinkIfNoneIsGiven) {
  Settings settings = DefaultSettings("prophet");
  settings["partition_bytes"] = 1000;
  settings["window_max_bytes"] = 1 << 30;
  settings["bandwidth_bps"] = kBitsPerSecond;
  ProphetPolicy policy(settings);
  ExpectUrgentAfter1000(policy);
  constexpr uint64_t kSlackBytes = kMs;  // one millisecond of this link
  static_assert(kSlackBytes > ProphetPolicy::kAcksWaitBytes);
  policy.OnReady({.key = Key(5), .priority = -5, .bytes = 300}, 0);
  EXPECT_EQ(policy.WindowBytes(0, -5, 1000), 1000 + kSlackBytes);
  Drain(policy, 0);
  Ack(policy, Key(5), 70'000);
  EXPECT_EQ(policy.WindowBytes(0, -5, 70'000), 1000 + 70'000 + kSlackBytes);
  policy.OnReady({.key = Key(6), .priority = -6, .bytes = 300}, 70'000);
  Drain(policy, 70'000);
  Ack(policy, Key(6), 70'000 + 30'000);  // a shorter delay
  EXPECT_EQ(policy.WindowBytes(0, -5, 100'000), 1000 + 30'000 + kSlackBytes);
}

TEST(Prophet, TheFloorOfASlowLinkIsWhatAcknowledgementsWaitFor) {
  const auto floor = [](int64_t bandwidth_bps) {
    Settings settings = DefaultSettings("prophet");
    settings["partition_bytes"] = 1000;
    settings["bandwidth_bps"] = bandwidth_bps;
    ProphetPolicy policy(settings);
    ExpectUrgentAfter1000(policy);
    policy.OnReady({.key = Key(5), .priority = -5, .bytes = 300}, 0);
    return policy.WindowBytes(0, -5, 1000);
  };
  EXPECT_EQ(floor(kBitsPerSecond / 25), 1000 + ProphetPolicy::kAcksWaitBytes);
  EXPECT_EQ(floor(kBitsPerSecond / 100), 1000u + 4 * kMs / 100);  // at most four milliseconds
}

TEST(Prophet, WithAPlanPartitionsGoInItsOrder) {
  Settings settings = DefaultSettings("prophet");
  settings["plan_bandwidth_bps"] = kBitsPerSecond;  // a partition takes 1000 ns
  ProphetPolicy policy(settings);
  const auto iteration = [&](TimeNs start) {
    policy.OnIteration(start);
    for (uint64_t part = 0; part < 4; ++part) {
      policy.OnReady({.key = Key(3, part), .priority = -3, .bytes = 1000}, start);
    }
    for (uint64_t part = 0; part < 2; ++part) {
      policy.OnReady({.key = Key(2, part), .priority = -2, .bytes = 1000}, start + 1500);
    }
    policy.OnReady({.key = Key(1), .priority = -1, .bytes = 1000}, start + 4500);
    const std::vector<uint64_t> sent = Drain(policy, start + 4500);
    for (const uint64_t key : sent) Ack(policy, key, start + 5000);
    return sent;
  };
  const std::vector<uint64_t> by_priority{Key(1),    Key(2, 0), Key(2, 1), Key(3, 0),
                                          Key(3, 1), Key(3, 2), Key(3, 3)};
  EXPECT_EQ(iteration(0), by_priority);
  const auto times = std::to_array<ReadyTime>({{.tensor = 3, .priority = -3, .ready_ns = 0},
                                               {.tensor = 2, .priority = -2, .ready_ns = 1500},
                                               {.tensor = 1, .priority = -1, .ready_ns = 4500}});
  policy.SetReadyTimes(times);
  // On the planned link two partitions of tensor 3 have been sent when tensor 2 comes, and one more
  // when tensor 1 does, which comes last and waits for nobody.
  const std::vector<uint64_t> in_order{Key(1),    Key(3, 0), Key(3, 1), Key(2, 0),
                                       Key(2, 1), Key(3, 2), Key(3, 3)};
  EXPECT_EQ(iteration(10'000), in_order);
  policy.Reconfigure({{"plan_bandwidth_bps", 0}});
  EXPECT_EQ(iteration(20'000), by_priority);
}

// All at once, as they come, and fifo's partitions; and back, also with items pending.
TEST(Prophet, InOrderItIsFifo) {
  Settings settings = DefaultSettings("prophet");
  settings["bandwidth_bps"] = kBitsPerSecond;
  settings["window_floor_bytes"] = settings["window_max_bytes"] = 2000;
  settings["in_order"] = 1;
  ProphetPolicy policy(settings);
  EXPECT_EQ(policy.PreferredPartitionBytes(), FifoPolicy::kPartitionBytes);
  const std::vector<uint64_t> came{Key(3, 1), Key(1), Key(3, 0), Key(2)};
  const auto offer = [&](TimeNs now) {
    for (const uint64_t key : came) {
      const auto priority = -static_cast<int32_t>(TensorOf(key));
      policy.OnReady({.key = key, .priority = priority, .bytes = 1500}, now);
    }
  };
  const auto send = [&](TimeNs now) {
    std::vector<uint64_t> sent;
    for (Decision next = policy.Next(now); next.kind == Decision::Kind::kSend;
         next = policy.Next(now)) {
      sent.push_back(next.item.key);
    }
    return sent;
  };
  offer(0);
  EXPECT_EQ(send(0), came);
  for (const uint64_t key : came) Ack(policy, key, 1000);
  policy.Reconfigure({{"in_order", 0}});
  EXPECT_NE(policy.PreferredPartitionBytes(), FifoPolicy::kPartitionBytes);
  offer(2000);
  EXPECT_EQ(send(2000), (std::vector{Key(1), Key(2)}));  // 1500 bytes in flight leave room for one
  policy.Reconfigure({{"in_order", 1}});
  EXPECT_EQ(send(2000), (std::vector{Key(3, 0), Key(3, 1)}));
}

TEST(Prophet, PartitionsThatMustNotGrowStayInOrder) {
  Settings settings = DefaultSettings("prophet");
  settings["in_order"] = 1;
  settings["partition_max_bytes"] = 512 << 10;
  EXPECT_EQ(ProphetPolicy(settings).PreferredPartitionBytes(), 512 << 10);
  settings["partition_max_bytes"] = 0;
  EXPECT_EQ(ProphetPolicy(settings).PreferredPartitionBytes(), std::nullopt);
}

TEST(Prophet, ItTellsWhatItLearnedOnceItKnowsItsLink) {
  Settings settings = DefaultSettings("prophet");
  ProphetPolicy policy(settings);
  policy.OnReady({.key = Key(1), .priority = -1, .bytes = 1000}, 5);
  EXPECT_EQ(policy.WhatItLearned(), std::nullopt);
  policy.Reconfigure({{"bandwidth_bps", 300'000'000}});
  const auto learned = policy.WhatItLearned();
  ASSERT_TRUE(learned);
  EXPECT_EQ(learned->bandwidth_bps, 300'000'000);
  ASSERT_EQ(learned->times.size(), 1);
  EXPECT_EQ(learned->times[0].tensor, 1);
  policy.Reconfigure({{"plan_bandwidth_bps", 300'000'000}});
  EXPECT_FALSE(policy.WhatItLearned()->has_plan);  // a bandwidth is no order
  const ReadyTime planned[] = {{.tensor = 1, .priority = -1, .ready_ns = 7}};
  policy.SetReadyTimes(planned);
  EXPECT_TRUE(policy.WhatItLearned()->has_plan);
  policy.Reconfigure({{"in_order", 1}});
  EXPECT_EQ(policy.WhatItLearned(), std::nullopt);
  policy.Reconfigure({{"in_order", 0}, {"common_order", 0}});
  EXPECT_EQ(policy.WhatItLearned(), std::nullopt);
}

// What is sent of tensors that become ready at once, in an iteration after one that showed them.
// Priorities say 1 before 2; the order on which workers agreed says that 2 comes much earlier.
std::vector<uint64_t> SentUnder(std::span<const std::pair<std::string, int64_t>> changes) {
  Settings settings = DefaultSettings("prophet");
  settings["bandwidth_bps"] = 8'000'000'000;
  settings["window_floor_bytes"] = settings["window_max_bytes"] = 1 << 20;
  ProphetPolicy policy(settings);
  const ReadyTime agreed[] = {{.tensor = 2, .ready_ns = 0},
                              {.tensor = 1, .ready_ns = 500'000},
                              {.tensor = 3, .ready_ns = 1'000'000}};
  policy.SetOrder(8'000'000'000, agreed);
  for (const auto& [name, value] : changes) policy.Reconfigure({{name, value}});
  std::vector<uint64_t> sent;
  for (TimeNs start = 0; start <= 10'000'000; start += 10'000'000) {
    sent.clear();
    policy.OnIteration(start);
    for (const uint64_t tensor : {2, 1}) {
      policy.OnReady({.key = Key(tensor), .priority = -static_cast<int32_t>(tensor), .bytes = 1000},
                     start);
    }
    for (Decision next = policy.Next(start); next.kind == Decision::Kind::kSend;
         next = policy.Next(start)) {
      sent.push_back(next.item.key);
      Ack(policy, next.item.key, start);
    }
    policy.OnReady({.key = Key(3), .priority = -3, .bytes = 1000}, start + 1'000'000);
    Ack(policy, policy.Next(start + 1'000'000).item.key, start + 1'000'000);
  }
  return sent;
}

TEST(Prophet, ItSendsInTheAgreedOrderUnlessItHasAPlansOrMustNot) {
  const auto sent = [](std::vector<std::pair<std::string, int64_t>> changes) {
    return SentUnder(changes);
  };
  const std::vector agreed = {Key(2), Key(1)};
  const std::vector by_priority = {Key(1), Key(2)};
  EXPECT_EQ(sent({}), agreed);
  EXPECT_EQ(sent({{"window_max_bytes", 2 << 20}}), agreed);  // other settings change nothing
  EXPECT_EQ(sent({{"common_order", 0}}), by_priority);
  // A plan without an order ends that of the plan before, not the agreed one.
  EXPECT_EQ(sent({{"plan_bandwidth_bps", 1000}, {"plan_bandwidth_bps", 0}}), agreed);
}

// The largest power of two that the link carries in 2.5 ms, from 256 KiB; less where that takes
// more than 6 ms, down to 64 KiB; within the limits.
TEST(Prophet, ThePreferredPartitionFollowsTheLink) {
  const auto preferred = [](double bytes_per_ns, int64_t now, int64_t most) {
    Settings settings = DefaultSettings("prophet");
    settings["bandwidth_bps"] = static_cast<int64_t>(bytes_per_ns * kBitsPerSecond);
    settings["partition_bytes"] = now;
    settings["partition_max_bytes"] = most;
    return ProphetPolicy(settings).PreferredPartitionBytes();
  };
  constexpr int64_t kKib = 1024;
  constexpr int64_t kMost = 4096 * kKib;
  for (const int64_t now : {64 * kKib, 256 * kKib, 1024 * kKib, kMost}) {
    EXPECT_EQ(preferred(0.125, now, kMost), 256 * kKib);  // 312 kB
    EXPECT_EQ(preferred(0.375, now, kMost), 512 * kKib);  // 937 kB
    EXPECT_EQ(preferred(1.0, now, kMost), 2048 * kKib);
    EXPECT_EQ(preferred(12.5, now, kMost), kMost);
    EXPECT_EQ(preferred(12.5, now, 3000 * kKib), 3000 * kKib);
  }
  for (const int64_t now : {64 * kKib, 256 * kKib, kMost}) {
    EXPECT_EQ(preferred(0.035, now, kMost), 128 * kKib);
    EXPECT_EQ(preferred(0.06, now, kMost), 256 * kKib);
    EXPECT_EQ(preferred(0.001, now, kMost), 64 * kKib);
  }
  EXPECT_EQ(preferred(0.043, 256 * kKib, kMost), 256 * kKib);  // 6.1 ms: not clearly
  EXPECT_EQ(preferred(0.043, 128 * kKib, kMost), 128 * kKib);
  EXPECT_EQ(preferred(0.0215, 128 * kKib, kMost), 128 * kKib);
  EXPECT_EQ(preferred(0.0215, 64 * kKib, kMost), 64 * kKib);
  EXPECT_EQ(preferred(0.22, 256 * kKib, kMost), 256 * kKib);  // 550 kB: not clearly
  EXPECT_EQ(preferred(0.22, 512 * kKib, kMost), 512 * kKib);  // another
  EXPECT_EQ(preferred(12.5, 64 * kKib, 200 * kKib), 200 * kKib);
  EXPECT_EQ(preferred(0.03, 64 * kKib, 100 * kKib), 100 * kKib);
  EXPECT_EQ(preferred(12.5, 64 * kKib, 0), std::nullopt);
  EXPECT_EQ(preferred(0, 256 * kKib, kMost), std::nullopt);  // not known yet
}

TEST(Prophet, WithNothingUrgentToComeALinkHasFourMillisecondsInFlight) {
  Settings settings = DefaultSettings("prophet");
  settings["partition_bytes"] = 1000;
  settings["bandwidth_bps"] = kBitsPerSecond / 10;
  const ProphetPolicy policy(settings);
  EXPECT_EQ(policy.WindowBytes(0, -5, 0), 1000u + 4 * kMs / 10);
}

TEST(Prophet, TheMaximumDoesNotStarveAFastLink) {
  Settings settings = DefaultSettings("prophet");
  settings["partition_bytes"] = 1000;
  settings["window_max_bytes"] = 1;
  settings["bandwidth_bps"] = kBitsPerSecond;
  const ProphetPolicy policy(settings);
  EXPECT_EQ(policy.WindowBytes(0, -5, 0), 1000u + kMs);
}

// A serial link of one byte per nanosecond, acknowledging `delay` after the last byte. Runs one
// iteration: bulk (tensor 9, 100 parts of 1000 bytes) is ready at `start`, urgent (tensor 1, one
// part of 1000 bytes) 50,000 ns later. Returns how long after that the urgent part has been sent.
TimeNs UrgentTakes(Policy& policy, TimeNs start) {
  constexpr TimeNs kDelay = 500;
  const TimeNs release = start + 50'000;
  bool released = false;
  TimeNs link_free = start;
  TimeNs urgent_sent = 0;
  std::deque<std::pair<TimeNs, uint64_t>> acks;
  for (uint64_t part = 0; part < 100; ++part) {
    policy.OnReady({.key = Key(9, part), .priority = -9, .bytes = 1000}, start);
  }
  for (TimeNs now = start;;) {
    for (const uint64_t key : Drain(policy, now)) {
      link_free = std::max(link_free, now) + 1000;
      acks.emplace_back(link_free + kDelay, key);
      if (key == Key(1)) urgent_sent = link_free;
    }
    if (acks.empty()) break;
    if (!released && release <= acks.front().first) {
      now = release;
      released = true;
      policy.OnReady({.key = Key(1), .priority = -1, .bytes = 1000}, now);
    } else {
      now = acks.front().first;
      policy.OnAcked({.key = acks.front().second}, now);
      acks.pop_front();
    }
  }
  return urgent_sent - release;
}

TEST(Prophet, AnUrgentTensorWaitsForTheFloorOnlyOnceItsTimeIsKnown) {
  ProphetPolicy policy = Make(2000, 30'000);
  EXPECT_GE(UrgentTakes(policy, 0), 28'000);  // unknown: behind the whole window
  for (int iteration = 1; iteration < 5; ++iteration) {
    EXPECT_LE(UrgentTakes(policy, iteration * 1'000'000), 2000 + 1000 + 1000);
  }
}

}  // namespace
}  // namespace prophet
