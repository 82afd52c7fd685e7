// Graphs small enough to be worked by hand: exact to the nanosecond.
#include <gtest/gtest.h>

#include <vector>

#include "graphs.h"
#include "prophet/fluid/links.h"

namespace prophet::graph {
namespace {

using Times = std::vector<TimeNs>;
using fluid::kWhole;
constexpr TimeNs kMs = 1'000'000;

TEST(ClosedForms, NothingTakesNoTime) {
  OwnedGraph graph;
  EXPECT_EQ(Replay(graph).makespan_ns, 0);
}

TEST(ClosedForms, AChainIsItsSum) {
  OwnedGraph graph;
  const int32_t device = graph.Serial();
  graph.Add({.duration = 5, .device = device, .latency = 3, .release = 10});
  graph.Add({.duration = 7, .after = {0}});
  graph.Add({.duration = 0, .device = device, .after = {1}});
  graph.Add({.duration = 2, .device = device, .after = {2}});
  const Result result = Replay(graph);
  EXPECT_EQ(result.ready_ns, (Times{10, 18, 25, 25}));
  EXPECT_EQ(result.start_ns, (Times{10, 18, 25, 25}));
  EXPECT_EQ(result.end_ns, (Times{15, 25, 25, 27}));
  EXPECT_EQ(result.device_busy_ns, (Times{7}));
  EXPECT_EQ(result.makespan_ns, 27);
}

TEST(ClosedForms, AJoinWaitsForItsLongestBranch) {
  OwnedGraph graph;
  graph.Add({.duration = 1});
  for (const TimeNs duration : {4, 9, 6}) graph.Add({.duration = duration, .after = {0}});
  graph.Add({.duration = 2, .after = {1, 2, 3}});
  EXPECT_EQ(Replay(graph).makespan_ns, 1 + 9 + 2);
}

TEST(ClosedForms, ADeviceGoesToWhoIsReadyFirst) {
  // In the order of the graph, as dPRO's replay has it, this would end at 105 ms.
  OwnedGraph graph;
  const int32_t device = graph.Serial();
  graph.Add({.duration = 5 * kMs, .device = device, .release = 50 * kMs});
  graph.Add({.duration = 50 * kMs, .device = device, .release = 4 * kMs});
  const Result result = Replay(graph);
  EXPECT_EQ(result.start_ns, (Times{54 * kMs, 4 * kMs}));
  EXPECT_EQ(result.end_ns, (Times{59 * kMs, 54 * kMs}));
  EXPECT_EQ(result.held_by, (std::vector<int32_t>{1, -1}));
}

TEST(ClosedForms, OfThoseReadyAtOneTimeTheSmallerIsFirst) {
  OwnedGraph graph;
  const int32_t device = graph.Serial();
  // The second has heard of its dependency at the same time, through one that took no time.
  const int32_t last = graph.Add({.duration = 3, .device = device});
  const int32_t instant = graph.Add({});
  graph.Depend(instant, last);
  graph.Add({.duration = 4, .device = device});
  EXPECT_EQ(Replay(graph).start_ns, (Times{0, 0, 3}));
}

TEST(ClosedForms, UnitsServeAsManyAtOnce) {
  OwnedGraph graph;
  const int32_t device = graph.Serial(2);
  for (const TimeNs duration : {5, 3, 4, 1}) {
    graph.Add({.duration = duration, .device = device});
  }
  const Result result = Replay(graph);
  EXPECT_EQ(result.start_ns, (Times{0, 0, 3, 5}));
  EXPECT_EQ(result.device_busy_ns, (Times{13}));
}

TEST(ClosedForms, PriorityGoesBeforeReadiness) {
  OwnedGraph graph;
  const int32_t device = graph.Serial(1, true);
  graph.Add({.duration = 10, .device = device, .priority = -9});
  graph.Add({.duration = 1, .device = device, .release = 1, .priority = -3});
  graph.Add({.duration = 1, .device = device, .release = 2, .priority = -2});
  graph.Add({.duration = 1, .device = device, .release = 3, .priority = -2});
  EXPECT_EQ(Replay(graph).start_ns, (Times{0, 12, 10, 11}));
}

TEST(ClosedForms, FlowsOfOneConnectionFollowEachOther) {
  OwnedGraph graph;
  const int32_t connection = graph.Connection({graph.Link(kBytePerNs)});
  graph.Add({.duration = 7, .device = connection, .bytes = 100});
  graph.Add({.duration = 7, .device = connection, .bytes = 50, .latency = 5});
  graph.Add({.after = {1}});
  const Result result = Replay(graph);
  EXPECT_EQ(result.end_ns, (Times{107, 164, 169}));
  EXPECT_EQ(result.link_busy_ns, (Times{150}));
  EXPECT_EQ(result.link_bytes, (std::vector<int64_t>{150}));
  EXPECT_EQ(result.device_busy_ns, (Times{164}));
}

TEST(ClosedForms, TwoFlowsShareALink) {
  OwnedGraph graph;
  const int32_t link = graph.Link(kBytePerNs);
  const int32_t one = graph.Connection({link});
  const int32_t two = graph.Connection({link});
  graph.Add({.device = one, .bytes = 100});
  graph.Add({.device = two, .bytes = 300});
  // Half each until 200, then the second alone.
  EXPECT_EQ(Replay(graph).end_ns, (Times{200, 400}));
}

TEST(ClosedForms, MaxMinGivesTheRestToWhoCanUseIt) {
  // Link 0 (2 bytes/ns) gives 1 to each of its two; link 1 (4 bytes/ns) has 3 left for its other.
  OwnedGraph graph;
  const int32_t narrow = graph.Link(2 * kBytePerNs);
  const int32_t wide = graph.Link(4 * kBytePerNs);
  graph.Add({.device = graph.Connection({narrow}), .bytes = 1000});
  graph.Add({.device = graph.Connection({narrow, wide}), .bytes = 1000});
  graph.Add({.device = graph.Connection({wide}), .bytes = 3000});
  EXPECT_EQ(Replay(graph).end_ns, (Times{1000, 1000, 1000}));
}

TEST(ClosedForms, OfLinksWithOneShareTheFirstFixesIt) {
  // Two links of 100,003 bits/s with two flows each, one of them on both. The first link gives
  // 50,001 to each of its two; the second has 50,002 left for its own.
  OwnedGraph graph;
  const int32_t first = graph.Link(100'003);
  const int32_t second = graph.Link(100'003);
  graph.Add({.device = graph.Connection({second}), .bytes = 50'002});
  graph.Add({.device = graph.Connection({first}), .bytes = 50'001});
  graph.Add({.device = graph.Connection({second, first}), .bytes = 50'001});
  EXPECT_EQ(Replay(graph).end_ns, (Times{8000 * kMs, 8000 * kMs, 8000 * kMs}));
}

TEST(ClosedForms, AFlowThatCrossesALinkTwiceTakesTwiceItsRate) {
  // 3 bytes/ns: the first crosses twice, so both have a rate of 1; then the second has it all.
  OwnedGraph graph;
  const int32_t link = graph.Link(3 * kBytePerNs);
  graph.Add({.device = graph.Weighted({link}, {2 * kWhole}), .bytes = 100});
  graph.Add({.device = graph.Connection({link}), .bytes = 400});
  const Result result = Replay(graph);
  EXPECT_EQ(result.end_ns, (Times{100, 200}));
  EXPECT_EQ(result.link_bytes, (std::vector<int64_t>{2 * 100 + 400}));
}

TEST(ClosedForms, APartOfTheBytesMayCrossALink) {
  // A quarter of the first's bytes crosses the second link, which is as fast as its own can be.
  OwnedGraph graph;
  const int32_t own = graph.Link(4 * kBytePerNs);
  const int32_t narrow = graph.Link(kBytePerNs);
  graph.Add({.device = graph.Weighted({own, narrow}, {kWhole, kWhole / 4}), .bytes = 400});
  EXPECT_EQ(Replay(graph).end_ns, (Times{100}));
  // With another flow on it, the rates are even: 5/4 of a rate are 1.
  graph.Add({.device = graph.Connection({narrow}), .bytes = 80});
  EXPECT_EQ(Replay(graph).end_ns, (Times{180, 100}));
}

TEST(ClosedForms, KernelsBesideAFlowTakeLonger) {
  OwnedGraph graph;
  const int32_t gpu = graph.Serial();
  const int32_t stream = graph.Connection({graph.Link(kBytePerNs)});
  graph.Overlap(gpu, 0, kWhole / 4);
  graph.Overlap(stream, 0, 0);
  // Beside the flow until 100: 80 of the first are done then. The second runs alone.
  graph.Add({.duration = 160, .device = gpu});
  graph.Add({.duration = 50, .device = gpu, .after = {0}});
  graph.Add({.device = stream, .bytes = 100});
  EXPECT_EQ(Replay(graph).end_ns, (Times{180, 230, 100}));
}

TEST(ClosedForms, FlowsBesideKernelsTakeLonger) {
  OwnedGraph graph;
  const int32_t gpu = graph.Serial();
  const int32_t other = graph.Serial();
  const int32_t stream = graph.Connection({graph.Link(kBytePerNs)});
  graph.Overlap(gpu, 3, 0);
  graph.Overlap(stream, 3, kWhole);
  // Half as fast until 60 and from 80 to 100; its cost is not slowed. What has no group is alone.
  graph.Add({.duration = 60, .device = gpu});
  graph.Add({.duration = 20, .device = gpu, .after = {0}, .release = 80});
  graph.Add({.duration = 10, .device = stream, .bytes = 100});
  graph.Add({.duration = 500, .device = other});
  EXPECT_EQ(Replay(graph).end_ns, (Times{60, 100, 145, 500}));
}

TEST(ClosedForms, WhatFollowsWithoutAGapGoesOnSlowed) {
  OwnedGraph graph;
  const int32_t gpu = graph.Serial();
  const int32_t stream = graph.Connection({graph.Link(kBytePerNs)});
  graph.Overlap(gpu, 0, kWhole);
  graph.Overlap(stream, 0, kWhole);
  for (int i = 0; i < 5; ++i) graph.Add({.duration = 10, .device = gpu});
  for (int i = 0; i < 10; ++i) graph.Add({.device = stream, .bytes = 20});
  const Result result = Replay(graph);
  // Both are slowed until 100, when the kernels end: 50 bytes have passed then.
  EXPECT_EQ(result.end_ns[4], 100);
  EXPECT_EQ(result.makespan_ns, 100 + 150);
}

TEST(ClosedForms, ACostOnTheFirstLinkIsSharedLikeBytes) {
  OwnedGraph graph;
  const int32_t link = graph.Link(kBytePerNs);
  const int32_t far = graph.Link(0);
  graph.Add({.duration = 100, .device = graph.Connection({link, far}, true)});
  graph.Add({.device = graph.Connection({link, far}, true), .bytes = 300});
  EXPECT_EQ(Replay(graph).end_ns, (Times{200, 400}));
}

TEST(ClosedForms, PushAndPullOfTwoTensorsOverlap) {
  // Both directions are links of their own: while the first is pulled the second is pushed.
  OwnedGraph graph;
  const int32_t up = graph.Connection({graph.Link(kBytePerNs)});
  const int32_t down = graph.Connection({graph.Link(kBytePerNs)});
  const int32_t push_one = graph.Add({.device = up, .bytes = 100, .latency = 3});
  const int32_t push_two = graph.Add({.device = up, .bytes = 60, .latency = 3});
  graph.Add({.device = down, .after = {push_one}, .bytes = 100, .latency = 3});
  graph.Add({.device = down, .after = {push_two}, .bytes = 60, .latency = 3});
  const Result result = Replay(graph);
  EXPECT_EQ(result.end_ns, (Times{100, 160, 203, 263}));
  EXPECT_EQ(result.ready_ns, (Times{0, 0, 103, 163}));
}

TEST(ClosedForms, TheLargestFlowIsExact) {
  OwnedGraph graph;
  const int64_t bytes = int64_t{1} << 40;
  graph.Add({.device = graph.Connection({graph.Link(kBytePerNs / 8)}), .bytes = bytes});
  EXPECT_EQ(Replay(graph).makespan_ns, 8 * bytes);
}

TEST(ClosedForms, AGateSendsByPriorityWithinItsCredit) {
  // One outstanding message: the first is under way when the others come, then the more urgent.
  OwnedGraph graph;
  const int32_t connection = graph.Connection({graph.Link(kBytePerNs)});
  const int32_t gate = graph.Gate();
  for (int32_t tensor = 0; tensor < 3; ++tensor) {
    const int32_t push = graph.Add(
        {.device = connection, .bytes = 100, .latency = 4, .release = tensor == 2 ? 0 : 1});
    const int32_t heard = graph.Add({.duration = 6, .after = {push}});
    const Item item{.key = static_cast<uint64_t>(tensor) << 16, .priority = -1 - tensor};
    graph.Guard(push, gate, item, heard);
  }
  const Result result = Replay(graph, "p3", {{"outstanding_messages", 1}});
  EXPECT_EQ(result.sent_ns, (Times{110, 220, 0}));
  EXPECT_EQ(result.start_ns[0], 110);
  EXPECT_EQ(result.start_ns[2], 220);
  EXPECT_EQ(result.start_ns[4], 0);
  EXPECT_EQ(result.held_by[0], 5);  // the acknowledgement of the first
  EXPECT_EQ(result.held_by[2], 1);
}

TEST(ClosedForms, WhatEndsFreesBeforeWhatStartsTakes) {
  OwnedGraph graph;
  const int32_t device = graph.Serial();
  for (int i = 0; i < 3; ++i) {
    graph.Add({.duration = 5, .device = device, .pool = 1, .allocated = 10, .freed = 8});
  }
  // At one time with the second, and in no time: nobody sees it.
  graph.Add({.release = 5, .pool = 1, .allocated = 1000, .freed = 1000});
  graph.Add({.duration = 1, .release = 6, .pool = 0, .allocated = 7});
  EXPECT_EQ(Replay(graph).peak_bytes, (std::vector<int64_t>{7, 14}));
}

}  // namespace
}  // namespace prophet::graph
