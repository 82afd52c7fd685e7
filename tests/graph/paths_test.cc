// The critical path, and what an operation needs. What holds of random graphs is in
// tests/replay/test_engine.py.
#include <gtest/gtest.h>

#include <vector>

#include "graphs.h"

namespace prophet::graph {
namespace {

using Numbers = std::vector<int32_t>;

Numbers PathOf(OwnedGraph& owned, const std::string& policy = "fifo",
               const Settings& settings = {}) {
  const Result result = Replay(owned, policy, settings);
  const Graph graph = owned.graph();
  return CriticalPath(graph.first_successor, graph.successor, graph.latency_ns, result.ready_ns,
                      result.end_ns, result.held_by);
}

TEST(CriticalPath, OfNothingIsEmpty) {
  OwnedGraph graph;
  EXPECT_EQ(PathOf(graph), Numbers{});
}

TEST(CriticalPath, GoesThroughTheLatestDependencyAndTheDevice) {
  OwnedGraph graph;
  const int32_t device = graph.Serial();
  const int32_t root = graph.Add({.duration = 2});
  const int32_t soon = graph.Add({.duration = 9, .device = device, .after = {root}});
  const int32_t late = graph.Add({.duration = 5, .after = {root}});
  const int32_t behind = graph.Add({.duration = 4, .device = device, .after = {late}});
  graph.Add({.duration = 1, .after = {root, soon}});
  EXPECT_EQ(PathOf(graph), (Numbers{root, soon, behind}));
}

TEST(CriticalPath, CountsLatency) {
  OwnedGraph graph;
  const int32_t far = graph.Add({.duration = 1, .latency = 10});
  const int32_t near = graph.Add({.duration = 5});
  const int32_t last = graph.Add({.duration = 1, .after = {near, far}});
  EXPECT_EQ(PathOf(graph), (Numbers{far, last}));
}

TEST(CriticalPath, GoesThroughAcknowledgements) {
  OwnedGraph graph;
  const int32_t connection = graph.Connection({graph.Link(kBytePerNs)});
  const int32_t gate = graph.Gate();
  Numbers path;
  for (int32_t i = 0; i < 3; ++i) {
    const int32_t push = graph.Add({.device = connection, .bytes = 100});
    const int32_t heard = graph.Add({.duration = 6, .after = {push}});
    graph.Guard(push, gate, {.key = static_cast<uint64_t>(i), .priority = -1 - i}, heard);
    path.insert(path.end(), {push, heard});
  }
  EXPECT_EQ(PathOf(graph, "p3", {{"outstanding_messages", 1}}), path);
}

TEST(Closure, HasDependenciesAcknowledgementsAndMarks) {
  OwnedGraph graph;
  const int32_t gate = graph.Gate();
  const int32_t other_gate = graph.Gate();
  const int32_t before = graph.Add({});
  const int32_t push = graph.Add({.after = {before}});
  const int32_t sum = graph.Add({.after = {push}});
  const int32_t heard = graph.Add({.after = {sum}});
  const int32_t pull = graph.Add({.after = {push}});
  const int32_t mark = graph.Add({});
  const int32_t other_mark = graph.Add({});
  graph.Guard(push, gate, {.key = 1}, heard);
  graph.Mark(mark, gate);
  graph.Mark(other_mark, other_gate);
  EXPECT_EQ(Closure(graph.graph(), Numbers{pull}), (Numbers{before, push, sum, heard, pull, mark}));
  EXPECT_EQ(Closure(graph.graph(), Numbers{before}), Numbers{before});
  EXPECT_EQ(Closure(graph.graph(), Numbers{}), Numbers{});
  EXPECT_THROW(Closure(graph.graph(), Numbers{9}), Refused);
}

}  // namespace
}  // namespace prophet::graph
