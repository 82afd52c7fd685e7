// What is sent next, and what comes before it is wanted.
#include <gtest/gtest.h>

#include <numeric>

#include "peers.h"

namespace byteprophet::exchange {
namespace {

constexpr size_t kBig = 1 << 20;  // elements; half of them for the other of two ranks

TEST(Order, TheUrgentOvertakesWhatHasBegun) {
  std::vector<float> big(kBig), urgent(4 * kFrameBytes);
  Alone alone(0, 2);
  Begin(*alone.mesh, Kind::kReduce, 1, big, 10);
  ASSERT_EQ(alone.peer(1).Read()->header.operation, 1u);  // it has begun
  Begin(*alone.mesh, Kind::kReduce, 2, urgent, -10);
  // Nothing is read meanwhile: what is before it was in the socket, or is a frame or two.
  const uint64_t frames = kBig / 2 * 4 / kFrameBytes;
  uint64_t before = 1;
  Received received = *alone.peer(1).Read();
  for (; received.header.operation == 1; received = *alone.peer(1).Read()) ++before;
  EXPECT_LT(before, frames / 4);
  const uint64_t urgent_frames = urgent.size() / 2 * 4 / kFrameBytes;
  for (uint64_t i = 0; i < urgent_frames; ++i, received = *alone.peer(1).Read()) {
    EXPECT_EQ(received.header.operation, 2u);
    EXPECT_EQ(received.header.offset_bytes, i * kFrameBytes);
  }
  for (uint64_t i = before; i < frames; ++i) {
    EXPECT_EQ(received.header.operation, 1u);
    EXPECT_EQ(received.header.offset_bytes, i * kFrameBytes);
    EXPECT_EQ(received.header.more, i + 1 < frames);
    if (i + 1 < frames) received = *alone.peer(1).Read();
  }
}

TEST(Order, WhoStartedFirstAtOnePosition) {
  std::vector<float> big(kBig), first(kBig), second(kBig);
  Alone alone(0, 2);
  Begin(*alone.mesh, Kind::kReduce, 9, big, 0);
  ASSERT_EQ(alone.peer(1).Read()->header.operation, 9u);
  Begin(*alone.mesh, Kind::kReduce, 8, first, 1);
  Begin(*alone.mesh, Kind::kReduce, 7, second, 1);
  std::vector<uint64_t> order{9};
  for (uint64_t left = 3 * kBig / 2 * 4 / kFrameBytes - 1; left > 0; --left) {
    const uint64_t operation = alone.peer(1).Read()->header.operation;
    if (operation != order.back()) order.push_back(operation);
  }
  EXPECT_EQ(order, (std::vector<uint64_t>{9, 8, 7}));
}

TEST(Order, ARankThatTakesNothingHoldsNobodyUp) {
  std::vector<float> big(kBig), later(3);
  Alone alone(0, 3);
  Begin(*alone.mesh, Kind::kReduce, 1, big);
  uint64_t bytes = 0;
  for (std::optional<Received> received; bytes < kBig / 3 * 4;) {
    received = alone.peer(1).Read();
    ASSERT_TRUE(received);
    bytes += received->body.size();
  }
  Begin(*alone.mesh, Kind::kReduce, 2, later, 1);
  EXPECT_EQ(alone.peer(1).Read()->header.operation, 2u);
  EXPECT_EQ(alone.mesh->Missing(1), (std::vector<int>{1, 2}));
  EXPECT_TRUE(alone.mesh->Completed({}).empty());
}

// The result is here, so its memory is let go of, in the middle of a frame.
TEST(Gathered, ARankThatTakesNothingHoldsNoMemory) {
  std::vector<float> values(3 * kBig);
  std::iota(values.begin(), values.end(), 0.f);
  const std::vector<float> before = values, sent(kBig, 7.f);
  Alone alone(0, 3);
  Begin(*alone.mesh, Kind::kGather, 1, values);
  const Received first = *alone.peer(2).Read();
  alone.peer(1).SendPart(Kind::kGather, 1, sent);
  alone.peer(2).SendPart(Kind::kGather, 1, sent);
  EXPECT_EQ(Await(*alone.mesh), (std::vector<Over>{{1, std::nullopt}}));
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), values.begin() + kBig));
  std::fill(values.begin(), values.end(), -1.f);
  const auto own = std::as_bytes(std::span(before).first(kBig));
  for (const int rank : {1, 2}) {
    uint64_t bytes = 0;
    while (bytes < own.size()) {
      const bool is_first = rank == 2 && bytes == 0;
      const Received frame = is_first ? first : *alone.peer(rank).Read();
      ASSERT_EQ(frame.header.offset_bytes, bytes);
      ASSERT_TRUE(std::equal(frame.body.begin(), frame.body.end(),
                             own.begin() + static_cast<ptrdiff_t>(bytes)));
      bytes += frame.body.size();
    }
  }
}

// The sum is here, and this rank's part of the other's is not sent yet.
TEST(Then, AGatherFollowsFromTheSum) {
  std::vector<float> values(2 * kBig, 1.f);
  const std::vector<float> part(kBig, 2.f), other(kBig, 9.f);
  Alone alone(0, 2);
  const Tensor tensor = TensorOf(values);
  alone.mesh->Begin(Kind::kReduce, 1, {&tensor, 1}, Dtype::kFloat32, false, 0, {},
                    Mesh::Then{.number = 2, .position = -1, .tells_sum = true});
  EXPECT_EQ(alone.mesh->Missing(2), std::vector<int>{1});
  alone.peer(1).SendPart(Kind::kReduce, 1, part);
  EXPECT_EQ(Await(*alone.mesh), (std::vector<Over>{{1, std::nullopt}}));
  EXPECT_EQ(alone.mesh->Missing(2), std::vector<int>{1});
  uint64_t reduced = 0, gathered = 0;
  while (gathered < kBig * 4) {  // it overtakes
    const Received frame = *alone.peer(1).Read();
    (frame.header.operation == 1 ? reduced : gathered) += frame.body.size();
    const auto* const first = reinterpret_cast<const float*>(frame.body.data());
    ASSERT_EQ(*first, frame.header.operation == 1 ? 1.f : 3.f);
  }
  EXPECT_LT(reduced, kBig * 4);
  while (reduced < kBig * 4) reduced += alone.peer(1).Read()->body.size();
  alone.peer(1).SendPart(Kind::kGather, 2, other);
  EXPECT_EQ(Await(*alone.mesh), (std::vector<Over>{{2, std::nullopt}}));
  EXPECT_EQ(values.front(), 3.f);
  EXPECT_EQ(values.back(), 9.f);
  EXPECT_TRUE(alone.mesh->Missing(2).empty());
}

TEST(Early, AReduceIsKeptUntilItIsStarted) {
  std::vector<float> values{1, 2, 3, 4};
  Alone alone(0, 2);
  alone.peer(1).SendPart(Kind::kReduce, 1, std::vector<float>{10, 20});
  alone.peer(1).AwaitTaken();
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3, 4}));
  Begin(*alone.mesh, Kind::kReduce, 1, values);
  EXPECT_EQ(Await(*alone.mesh), (std::vector<Over>{{1, std::nullopt}}));
  EXPECT_EQ(values, (std::vector<float>{11, 22, 3, 4}));
}

// Started when any number of bytes has come, in the middle of a frame or between two.
TEST(Early, AGatherIsStartedAtAnyByte) {
  const std::vector<float> sent{5, 6, 7, 8};
  const auto bytes = std::as_bytes(std::span(sent));
  for (size_t cut = 1; cut <= bytes.size(); ++cut) {
    Alone alone(0, 2);
    const size_t first = 7;  // bytes of the first of two frames
    const auto send = [&](size_t from, size_t to) {
      for (size_t i = from; i < to; ++i) {
        if (i == 0) alone.peer(1).SendHeader(Kind::kGather, 1, bytes.size(), 0, first);
        if (i == first)
          alone.peer(1).SendHeader(Kind::kGather, 1, bytes.size(), first, bytes.size() - first);
        alone.peer(1).Send(bytes.subspan(i, 1));
      }
    };
    send(0, cut);
    alone.peer(1).AwaitTaken();
    std::vector<float> values{1, 2, 3, 4, -1, -1, -1, -1};
    // Two tensors, so that the part is in two pieces.
    const Tensor tensors[] = {{reinterpret_cast<std::byte*>(values.data()), 2},
                              {reinterpret_cast<std::byte*>(values.data() + 2), 6}};
    alone.mesh->Begin(Kind::kGather, 1, tensors, Dtype::kFloat32, false, 0);
    send(cut, bytes.size());
    EXPECT_EQ(Await(*alone.mesh), (std::vector<Over>{{1, std::nullopt}}));
    EXPECT_EQ(values, (std::vector<float>{1, 5, 3, 4, -1, 6, 7, 8})) << cut;
  }
}

}  // namespace
}  // namespace byteprophet::exchange
