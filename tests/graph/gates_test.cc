// What a policy behind a gate hears, in which order, and when it is asked.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "graphs.h"
#include "prophet/policy.h"

namespace prophet::graph {
namespace {

using Log = std::vector<std::string>;

// Sends everything, first in first out, `delay` after it became ready; writes down what it hears.
class Recording : public Policy {
 public:
  Recording(Log& log, TimeNs delay) : log_(log), delay_(delay) {}
  void OnReady(const Item& item, TimeNs now) override {
    Write("ready", item.key, now);
    pending_.push_back(item);
    since_ = now;
  }
  void OnAcked(const Item& item, TimeNs now) override { Write("acked", item.key, now); }
  void OnIteration(TimeNs now) override { log_.push_back("iteration @" + std::to_string(now)); }
  Decision Next(TimeNs now) override {
    log_.push_back("asked @" + std::to_string(now));
    if (pending_.empty()) return {};
    if (now < since_ + delay_) {
      return {.kind = Decision::Kind::kWaitUntil, .ask_again_ns = since_ + delay_};
    }
    const Item item = pending_.front();
    pending_.erase(pending_.begin());
    return {.kind = Decision::Kind::kSend, .item = item};
  }
  size_t pending() const override { return pending_.size(); }
  std::string_view name() const override { return "recording"; }
  void Reconfigure(const Settings& /*overrides*/) override {}
  const Settings& settings() const override { return settings_; }

 private:
  void Write(const std::string& what, uint64_t key, TimeNs now) {
    log_.push_back(what + " " + std::to_string(key) + " @" + std::to_string(now));
  }

  Log& log_;
  const TimeNs delay_;
  TimeNs since_ = 0;
  std::vector<Item> pending_;
  const Settings settings_;
};

Log Heard(OwnedGraph& graph, TimeNs delay = 0) {
  Log log;
  Replay(graph.graph(), [&](size_t /*gate*/) { return std::make_unique<Recording>(log, delay); });
  return log;
}

TEST(Gates, APolicyHearsAllOfOneTimeThenIsAsked) {
  // At 10: the acknowledgement of 0, an iteration that 1 marks, and 0 and 2 ready around it.
  OwnedGraph graph;
  const int32_t gate = graph.Gate();
  graph.Add({.release = 10});
  graph.Add({.release = 10});
  graph.Add({.release = 10});
  const int32_t first = graph.Add({.duration = 10});
  const int32_t last = graph.Add({.duration = 1, .release = 11});
  for (const int32_t gated : {2, 0}) {
    graph.Guard(gated, gate, {.key = static_cast<uint64_t>(gated)}, last);
    graph.Depend(gated, last);
  }
  graph.Guard(first, gate, {.key = 7}, first);
  graph.Mark(1, gate);
  EXPECT_EQ(Heard(graph),
            (Log{"ready 7 @0", "asked @0", "asked @0", "acked 7 @10", "ready 0 @10",
                 "iteration @10", "ready 2 @10", "asked @10", "asked @10", "asked @10"}));
}

TEST(Gates, APolicyIsAskedAgainWhenItWishes) {
  OwnedGraph graph;
  const int32_t gate = graph.Gate();
  const int32_t gated = graph.Add({.duration = 5, .latency = 2});
  graph.Add({.duration = 5, .after = {gated}});
  graph.Guard(gated, gate, {.key = 7}, gated);
  EXPECT_EQ(Heard(graph, 3),
            (Log{"ready 7 @0", "asked @0", "asked @3", "asked @3", "acked 7 @10", "asked @10"}));
  const Result result = [&] {
    Log log;
    return Replay(graph.graph(),
                  [&](size_t /*gate*/) { return std::make_unique<Recording>(log, 3); });
  }();
  EXPECT_EQ(result.sent_ns, std::vector<TimeNs>{3});
  EXPECT_EQ(result.end_ns, (std::vector<TimeNs>{8, 15}));
  EXPECT_EQ(result.held_by, (std::vector<int32_t>{-1, -1}));  // the policy waited by itself
}

TEST(Gates, TheFirstGateIsAskedFirst) {
  // What both send at one time goes over one connection.
  OwnedGraph graph;
  const int32_t connection = graph.Connection({graph.Link(kBytePerNs)});
  const int32_t first = graph.Gate();
  const int32_t second = graph.Gate();
  for (const int32_t gate : {second, first, second, first}) {
    const int32_t push = graph.Add({.device = connection, .bytes = 10});
    graph.Guard(push, gate, {.key = static_cast<uint64_t>(push)}, push);
  }
  EXPECT_EQ(Replay(graph).start_ns, (std::vector<TimeNs>{20, 0, 30, 10}));
}

TEST(Gates, APolicyThatOnlyPromisesIsGivenUp) {
  OwnedGraph graph;
  const int32_t gated = graph.Add({});
  graph.Guard(gated, graph.Gate(), {.key = 7}, gated);
  Log log;
  EXPECT_THROW(Replay(graph.graph(),
                      [&](size_t /*gate*/) {
                        class Never : public Recording {
                         public:
                          using Recording::Recording;
                          Decision Next(TimeNs now) override {
                            return {.kind = Decision::Kind::kWaitUntil, .ask_again_ns = now + 1};
                          }
                        };
                        return std::make_unique<Never>(log, 0);
                      }),
               Refused);
}

}  // namespace
}  // namespace prophet::graph
