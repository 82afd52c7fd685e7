// What cannot be replayed is refused in one line that names an operation where there is one.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "graphs.h"
#include "prophet/fluid/links.h"
#include "prophet/registry.h"

namespace prophet::graph {
namespace {

// The operation that is named.
int64_t Refusal(const Graph& graph, const std::string& says, const std::string& policy = "fifo") {
  try {
    Replay(graph, [&](size_t /*gate*/) { return MakePolicy(policy); });
  } catch (const Refused& refused) {
    const std::string text = refused.what();
    EXPECT_NE(text.find(says), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos);
    return refused.operation();
  }
  ADD_FAILURE() << "not refused: " << says;
  return -2;
}

TEST(Refusals, ACycleIsNamed) {
  OwnedGraph graph;
  for (int i = 0; i < 5; ++i) graph.Add({.duration = 1});
  graph.Depend(0, 1);
  graph.Depend(1, 3);
  graph.Depend(3, 2);
  graph.Depend(2, 3);
  graph.Depend(3, 4);  // behind the cycle, not on it
  const int64_t named = Refusal(graph.graph(), "depends on itself");
  EXPECT_TRUE(named == 2 || named == 3) << named;
  OwnedGraph self;
  self.Add({.after = {0}});
  EXPECT_EQ(Refusal(self.graph(), "operation 0 depends on itself"), 0);
}

TEST(Refusals, APolicyThatKeepsAnOperationIsSeen) {
  // The first's acknowledgement waits for the second, for which there is no credit before.
  OwnedGraph graph;
  const int32_t gate = graph.Gate();
  const int32_t first = graph.Add({.bytes = 10});
  const int32_t second = graph.Add({.bytes = 10});
  const int32_t acknowledgement = graph.Add({.after = {first, second}});
  graph.Guard(first, gate, {.key = 1, .priority = -1}, acknowledgement);
  graph.Guard(second, gate, {.key = 2, .priority = -2}, acknowledgement);
  EXPECT_NO_THROW(Replay(graph, "fifo"));
  try {
    Replay(graph, "p3", {{"outstanding_messages", 1}});
    FAIL();
  } catch (const Refused& refused) {
    EXPECT_EQ(refused.operation(), second) << refused.what();
  }
}

TEST(Refusals, KeysAndAcknowledgementsMustBePossible) {
  OwnedGraph twice;
  const int32_t gate = twice.Gate();
  for (int i = 0; i < 2; ++i) {
    const int32_t push = twice.Add({.duration = 5});
    twice.Guard(push, gate, {.key = 7, .priority = -1}, push);
  }
  EXPECT_EQ(Refusal(twice.graph(), "same key"), 1);

  OwnedGraph early;
  const int32_t push = early.Add({.release = 5});
  early.Guard(push, early.Gate(), {.key = 7, .priority = -1}, early.Add({.duration = 3}));
  EXPECT_EQ(Refusal(early.graph(), "must depend on it"), push);
}

TEST(Refusals, WhatIsOutOfRangeIsNamed) {
  const auto refusal = [](const Step& step, const std::string& says) {
    OwnedGraph graph;
    graph.Serial();
    graph.Add({.duration = 1, .device = 0});
    graph.Add(step);
    EXPECT_EQ(Refusal(graph.graph(), says), 1);
  };
  refusal({.duration = -1}, "duration_ns");
  refusal({.duration = (int64_t{1} << 60) + 1}, "duration_ns");
  refusal({.latency = -1}, "latency_ns");
  refusal({.release = -1}, "release_ns");
  refusal({.bytes = -1}, "size_bytes");
  refusal({.device = 1}, "device");
  refusal({.device = -2}, "device");
  refusal({.pool = -2}, "pool");
  refusal({.pool = 0, .allocated = -1}, "negative");
}

TEST(Refusals, DevicesAndLinksMustMakeSense) {
  const auto refusal = [](const std::vector<int64_t>& rates, const std::vector<int32_t>& route,
                          const std::string& says) {
    OwnedGraph graph;
    for (const int64_t rate : rates) graph.Link(rate);
    graph.Connection(route);
    EXPECT_EQ(Refusal(graph.graph(), says), -1);
  };
  refusal({0}, {1}, "does not exist");
  refusal({0}, {0, 0}, "twice");
  refusal({7999}, {0}, "rate");
  OwnedGraph none;
  none.Serial(0);
  EXPECT_EQ(Refusal(none.graph(), "units"), -1);
  OwnedGraph crowded;
  const int32_t link = crowded.Link(8000);
  for (int i = 0; i < 8001; ++i) crowded.Connection({link});
  EXPECT_EQ(Refusal(crowded.graph(), "more connections"), -1);
}

TEST(Refusals, WeightsAndOverlapMustMakeSense) {
  const auto refusal = [](const std::vector<int32_t>& weights, int32_t group, int32_t slowdown,
                          const std::string& says) {
    OwnedGraph graph;
    const int32_t link = graph.Link(8000);
    graph.Overlap(graph.Weighted({link}, weights), group, slowdown);
    EXPECT_EQ(Refusal(graph.graph(), says), -1);
  };
  refusal({fluid::kWhole, fluid::kWhole}, -1, 0, "one weight per link");
  refusal({0}, -1, 0, "weight must be");
  refusal({fluid::kMaxWeight}, -2, 0, "overlap group");
  refusal({fluid::kWhole}, 0, -1, "overlap slowdown");
  OwnedGraph heavy;
  const int32_t link = heavy.Link(8000);
  for (int i = 0; i < 8; ++i) heavy.Weighted({link}, {fluid::kMaxWeight});
  EXPECT_EQ(Refusal(heavy.graph(), "more connections (by their weights)"), -1);
  OwnedGraph several;
  several.Overlap(several.Serial(2), 0, 0);
  EXPECT_EQ(Refusal(several.graph(), "must have one unit"), -1);
}

TEST(Refusals, ArraysMustFitTogether) {
  const std::vector<int64_t> one{1};
  const std::vector<int32_t> device{-1};
  const std::vector<int64_t> first{0, 1};
  const std::vector<int32_t> outside{1};
  Graph graph{.duration_ns = one, .device = device};
  EXPECT_EQ(Refusal(graph, "first_successor"), -1);
  graph.first_successor = first;
  EXPECT_EQ(Refusal(graph, "first_successor"), -1);
  graph.successor = outside;
  EXPECT_EQ(Refusal(graph, "successor that does not exist"), 0);
}

TEST(Refusals, TimeMustFit) {
  OwnedGraph graph;
  for (int i = 0; i < 3; ++i) graph.Add({.duration = int64_t{1} << 59});
  EXPECT_EQ(Refusal(graph.graph(), "longer than 2^60 ns"), -1);
  OwnedGraph flows;
  flows.Add({.device = flows.Connection({flows.Link(8000)}), .bytes = int64_t{1} << 50});
  EXPECT_EQ(Refusal(flows.graph(), "longer than 2^60 ns"), -1);
}

}  // namespace
}  // namespace prophet::graph
