// Ranks that are gone, leave, give up, send nonsense, or mean something else.
#include <gtest/gtest.h>

#include <numeric>

#include "peers.h"

namespace byteprophet::exchange {
namespace {

std::vector<Over> Failed(uint64_t number, const std::string& error) { return {{number, error}}; }

TEST(Failures, ARankThatDiesInAFrameFailsWhatNeedsItAndNothingElse) {
  Alone alone(0, 3);
  std::vector<float> values(6), later(6);
  std::vector<float> of_rank_2(1);  // rank 1 has nothing to do with it
  Begin(*alone.mesh, Kind::kReduce, 1, values);
  Begin(*alone.mesh, Kind::kGather, 2, of_rank_2);
  alone.peer(1).SendHeader(Kind::kReduce, 1, 8, 0, 8);
  alone.peer(1).Send(std::vector<std::byte>(3));
  alone.peer(1).Leave();
  // Which of the two depends on what it had read, and on who sees it first.
  const std::string closed = "rank 1 is gone: connection closed";
  const std::string reset = "rank 1 is gone: connection reset";
  const auto first = Await(*alone.mesh);
  EXPECT_TRUE(first == Failed(1, closed) || first == Failed(1, reset));
  Begin(*alone.mesh, Kind::kReduce, 3, later);
  const auto second = Await(*alone.mesh);
  EXPECT_TRUE(second == Failed(3, closed) || second == Failed(3, reset));
  alone.peer(2).SendPart(Kind::kReduce, 1, std::vector<float>{1, 2});  // thrown away
  alone.peer(2).SendPart(Kind::kGather, 2, std::vector<float>{7}, 4);
  EXPECT_EQ(Await(*alone.mesh), (std::vector<Over>{{2, std::nullopt}}));
  EXPECT_EQ(of_rank_2, (std::vector<float>{7}));
  EXPECT_EQ(values, std::vector<float>(6));
}

TEST(Failures, AnEndWithoutAGoodbyeIsAnError) {
  Alone alone(0, 2);
  std::vector<float> values(1);
  alone.peer(1).Leave();
  Begin(*alone.mesh, Kind::kGather, 1, values);
  EXPECT_EQ(Await(*alone.mesh), Failed(1, "rank 1 is gone: connection closed"));
}

TEST(Failures, WhoEndedFirstIsNamedWithWhoFollowed) {
  Alone alone(0, 3);
  std::vector<float> values(3), of_rank_2(1);
  alone.peer(1).SayGoodbye();
  Begin(*alone.mesh, Kind::kGather, 1, values);
  EXPECT_EQ(Await(*alone.mesh), Failed(1, "rank 1 has left the job"));
  alone.peer(2).SayGoodbye();
  Begin(*alone.mesh, Kind::kGather, 2, of_rank_2);
  EXPECT_EQ(Await(*alone.mesh),
            Failed(2, "rank 2 has left the job (before it: rank 1 has left the job)"));
}

TEST(Failures, AGoodbyeIsNoneUntilTheRankIsNeeded) {
  Alone alone(0, 2);
  std::vector<float> values(1), more(2);
  alone.peer(1).SendPart(Kind::kGather, 1, std::vector<float>{7}, 4);
  alone.peer(1).SayGoodbye();
  alone.peer(1).AwaitTaken();
  alone.peer(1).Leave();
  Begin(*alone.mesh, Kind::kGather, 1, values);  // all of it is here
  EXPECT_EQ(Await(*alone.mesh), (std::vector<Over>{{1, std::nullopt}}));
  EXPECT_EQ(values, (std::vector<float>{7}));
  Begin(*alone.mesh, Kind::kGather, 2, more);
  EXPECT_EQ(Await(*alone.mesh), Failed(2, "rank 1 has left the job"));
}

TEST(Failures, OthersHearWhyAfterTheFrameInProgress) {
  Alone alone(0, 3);
  std::vector<float> values(300'000);
  std::iota(values.begin(), values.end(), 0.f);
  const std::vector<float> before = values;
  Begin(*alone.mesh, Kind::kReduce, 1, values);
  std::vector<Received> read{*alone.peer(2).Read()};  // and a frame is stuck in the socket
  alone.peer(1).SayGoodbye();
  EXPECT_EQ(Await(*alone.mesh), Failed(1, "rank 1 has left the job"));
  std::fill(values.begin(), values.end(), -1.f);  // its memory is free
  while (read.back().header.kind == Kind::kReduce) read.push_back(*alone.peer(2).Read());
  EXPECT_EQ(read.back().header.kind, Kind::kAbort);
  EXPECT_EQ(read.back().header.operation, 1u);
  EXPECT_EQ(read.back().text(), "rank 1 has left the job");
  read.pop_back();
  const auto share = std::as_bytes(std::span(before).subspan(200'000));
  for (const Received& frame : read) {
    EXPECT_TRUE(std::equal(frame.body.begin(), frame.body.end(),
                           share.begin() + static_cast<ptrdiff_t>(frame.header.offset_bytes)));
  }
}

// It ends once, whether the gather had begun or not.
TEST(Failures, AReduceAndWhatFollowsFailTogether) {
  for (const bool summed : {false, true}) {
    std::vector<float> values(4, 1.f), later(1);
    Alone alone(0, 2);
    const Tensor tensor = TensorOf(values);
    alone.mesh->Begin(Kind::kReduce, 1, {&tensor, 1}, Dtype::kFloat32, false, 0, {},
                      Mesh::Then{.number = 2, .position = 0, .tells_sum = false});
    if (summed) {
      alone.peer(1).SendPart(Kind::kReduce, 1, std::vector<float>{1, 2});
      EXPECT_EQ(alone.peer(1).Read()->header.operation, 1u);
      EXPECT_EQ(alone.peer(1).Read()->header.operation, 2u);
    }
    alone.peer(1).SayGoodbye();
    EXPECT_EQ(Await(*alone.mesh), Failed(2, "rank 1 has left the job"));
    Begin(*alone.mesh, Kind::kGather, 3, later);
    EXPECT_EQ(Await(*alone.mesh), Failed(3, "rank 1 has left the job"));
  }
}

TEST(Failures, WhatAnotherRankGivesUpIsGivenUp) {
  for (const bool early : {false, true}) {
    Alone alone(0, 3);
    std::vector<float> values(6);
    const auto give_up = [&] {
      const std::string text = "rank 2 is gone: no answer";
      alone.peer(1).SendHeader(Kind::kAbort, 1, text.size(), 0, text.size());
      alone.peer(1).Send(std::as_bytes(std::span(text)));
      alone.peer(1).AwaitTaken();
    };
    if (early) give_up();
    Begin(*alone.mesh, Kind::kReduce, 1, values);
    if (!early) give_up();
    EXPECT_EQ(Await(*alone.mesh), Failed(1, "rank 2 is gone: no answer (says rank 1)"));
  }
}

TEST(Failures, SizesThatDifferAreNamed) {
  for (const bool early : {false, true}) {
    Alone alone(0, 2);
    std::vector<float> values(10);
    if (early) {
      alone.peer(1).SendPart(Kind::kReduce, 1, std::vector<float>(6));
      alone.peer(1).AwaitTaken();
    }
    Begin(*alone.mesh, Kind::kReduce, 1, values);
    if (!early) alone.peer(1).SendPart(Kind::kReduce, 1, std::vector<float>(6));
    EXPECT_EQ(
        Await(*alone.mesh),
        Failed(1,
               "rank 1 sends 48 bytes of a float32 reduce-scatter, rank 0 expects 40 bytes of a "
               "float32 reduce-scatter"));
  }
}

TEST(Failures, SizesOfWhichSharesAreEqualDifferToo) {
  Alone alone(0, 2);
  std::vector<float> values(5);  // of which this rank owns two, as of four
  Begin(*alone.mesh, Kind::kReduce, 1, values);
  alone.peer(1).SendPart(Kind::kReduce, 1, std::vector<float>(2));
  EXPECT_EQ(Await(*alone.mesh),
            Failed(1,
                   "rank 1 sends 16 bytes of a float32 reduce-scatter, rank 0 expects 20 bytes of "
                   "a float32 reduce-scatter"));
}

TEST(Failures, AFrameOfWhatIsOverHereBelongsToNothing) {
  std::vector<float> values(300'000), of_rank_2(1);
  Alone alone(0, 3);
  Begin(*alone.mesh, Kind::kGather, 1, values);     // a frame is stuck in the socket
  Begin(*alone.mesh, Kind::kReduce, 2, of_rank_2);  // behind it; nothing is expected for this one
  alone.peer(1).SendPart(Kind::kGather, 2, std::vector<float>{7}, 4);
  alone.peer(1).AwaitTaken();
  alone.peer(2).Leave();
  for (const auto& [number, error] : Await(*alone.mesh, 2))
    EXPECT_TRUE(error && error->starts_with("rank 2 is gone")) << number;
}

TEST(Failures, ThatOneRankFindsEndItForAll) {
  auto meshes = Meshes(3, Wire::kPair);
  std::vector<float> values(30), other(30);
  std::vector<int32_t> integers(30);
  Begin(*meshes[0], Kind::kReduce, 1, values);
  Begin(*meshes[1], Kind::kGather, 1, other);
  const Tensor tensor = TensorOf(integers);
  meshes[2]->Begin(Kind::kReduce, 1, {&tensor, 1}, Dtype::kInt32, false, 0);
  for (auto& mesh : meshes) {
    const auto over = Await(*mesh);
    ASSERT_TRUE(over[0].second);
    EXPECT_NE(over[0].second->find(" expects 40 bytes of a"), std::string::npos) << *over[0].second;
  }
  // And the ranks are still connected.
  std::vector<std::vector<float>> again(3, std::vector<float>(3, 1));
  for (size_t r = 0; r < 3; ++r) Begin(*meshes[r], Kind::kReduce, 2, again[r]);
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(Await(*meshes[r]), (std::vector<Over>{{2, std::nullopt}}));
    EXPECT_EQ(again[r][r], 3);
  }
  CloseAll(meshes);
}

TEST(Failures, NonsenseEndsTheConnection) {
  const auto send = [](const char* what, const auto& send_to, const std::string& error) {
    SCOPED_TRACE(what);
    Alone alone(0, 2);
    std::vector<float> values(10);
    send_to(alone.peer(1));
    Begin(*alone.mesh, Kind::kReduce, 1, values);
    EXPECT_EQ(Await(*alone.mesh), Failed(1, "rank 1 " + error));
    while (alone.peer(1).Read()) {
    }
  };
  const std::string no_frame = "sent what is no frame";
  send("zeros", [](Peer& peer) { peer.Send(std::vector<std::byte>(kHeaderBytes)); }, no_frame);
  send(
      "beyond the total", [](Peer& peer) { peer.SendHeader(Kind::kReduce, 1, 8, 4, 8); }, no_frame);
  send(
      "overflowing", [](Peer& peer) { peer.SendHeader(Kind::kReduce, 1, 8, ~uint64_t{0}, 8); },
      no_frame);
  send("nothing", [](Peer& peer) { peer.SendHeader(Kind::kReduce, 1, 8, 0, 0); }, no_frame);
  send(
      "long", [](Peer& peer) { peer.SendHeader(Kind::kReduce, 1, 1 << 30, 0, 1 << 30); }, no_frame);
  send("long text", [](Peer& peer) { peer.SendHeader(Kind::kAbort, 1, 2000, 0, 2000); }, no_frame);
  send("of no kind", [](Peer& peer) { peer.SendHeader(Kind{9}, 1, 8, 0, 8); }, no_frame);
  send(
      "not from the beginning", [](Peer& peer) { peer.SendHeader(Kind::kReduce, 1, 8, 4, 4); },
      "sent a frame without those before it");
  send(
      "another total",
      [](Peer& peer) {
        peer.SendHeader(Kind::kReduce, 1, 20, 0, 4);
        peer.Send(std::vector<std::byte>(4));
        peer.SendHeader(Kind::kReduce, 1, 24, 4, 4);
      },
      "sent frames that do not fit together");
}

TEST(Failures, OneNumberTwice) {
  std::vector<float> values(10);
  Alone alone(0, 2);
  Begin(*alone.mesh, Kind::kReduce, 1, values);
  EXPECT_THROW(Begin(*alone.mesh, Kind::kReduce, 1, values), std::invalid_argument);
}

}  // namespace
}  // namespace byteprophet::exchange
