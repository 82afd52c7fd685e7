// A mesh ends whatever the others do, and takes nothing away from them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "peers.h"

namespace byteprophet::exchange {
namespace {

TEST(Closing, IsNotHeldUpByARankThatTakesNothing) {
  Alone alone(0, 2);
  std::vector<float> values(1 << 20);
  Begin(*alone.mesh, Kind::kReduce, 1, values);
  ASSERT_TRUE(alone.peer(1).Read());
  alone.mesh->Close(std::chrono::milliseconds(20));
  EXPECT_EQ(Await(*alone.mesh), (std::vector<Over>{{1, "this rank has left the job"}}));
  EXPECT_TRUE(alone.mesh->Completed(kLong).empty());  // at once
  EXPECT_THROW(Begin(*alone.mesh, Kind::kReduce, 2, values), std::invalid_argument);
  alone.mesh->Close(kLong);
}

TEST(Closing, ByTheDestructorIsNotEither) {
  Alone alone(0, 2);
  std::vector<float> values(1 << 20);
  Begin(*alone.mesh, Kind::kReduce, 1, values);
  ASSERT_TRUE(alone.peer(1).Read());
  alone.mesh.reset();
  while (alone.peer(1).Read()) {
  }
}

TEST(Closing, SendsWhatIsQueuedAndSaysGoodbye) {
  Alone alone(1, 2);
  std::vector<float> values(100'001, 3);
  Begin(*alone.mesh, Kind::kGather, 1, values);
  std::thread closing([&] { alone.mesh->Close(kLong); });
  uint64_t bytes = 0;
  std::optional<Received> received = alone.peer(0).Read();
  for (; received && received->header.kind == Kind::kGather; received = alone.peer(0).Read())
    bytes += received->body.size();
  EXPECT_EQ(bytes, 50'001u * 4);
  ASSERT_TRUE(received);
  EXPECT_EQ(received->header.kind, Kind::kGoodbye);
  EXPECT_FALSE(alone.peer(0).Read());
  closing.join();
}

class OverEachWire : public testing::TestWithParam<Wire> {};
INSTANTIATE_TEST_SUITE_P(, OverEachWire, testing::Values(Wire::kPair, Wire::kTcp));

// The rank that leaves has unread bytes in its socket, or gets more: that must not cost the other
// what it has been sent.
TEST_P(OverEachWire, TheLastBytesArriveWhateverIsSentToWhoLeaves) {
  for (int turn = 0; turn < 20; ++turn) {
    auto meshes = Meshes(2, GetParam());
    std::vector<float> theirs(1, 7), ours(1), big(200'000);
    Begin(*meshes[1], Kind::kGather, 2, theirs);
    Begin(*meshes[0], Kind::kReduce, 1, big);  // rank 1 never starts it
    meshes[1]->Close(kLong);
    EXPECT_EQ(Await(*meshes[0]), (std::vector<Over>{{1, "rank 1 has left the job"}}));
    Begin(*meshes[0], Kind::kGather, 2, ours);
    EXPECT_EQ(Await(*meshes[0]), (std::vector<Over>{{2, std::nullopt}}));
    EXPECT_EQ(ours, theirs);
  }
}

TEST_P(OverEachWire, DuringTraffic) {
  for (int turn = 0; turn < 20; ++turn) {
    auto meshes = Meshes(3, GetParam());
    std::vector<std::thread> threads;
    for (size_t r = 0; r < 3; ++r) {
      threads.emplace_back([&mesh = *meshes[r]] {
        std::vector<std::vector<float>> tensors;
        uint64_t started = 0, over = 0;
        try {
          for (; started < 1000; ++started) {
            tensors.emplace_back(5000);
            Begin(mesh, started % 2 == 0 ? Kind::kReduce : Kind::kGather, started, tensors.back(),
                  static_cast<int64_t>(started % 7));
          }
        } catch (const std::invalid_argument&) {
        }
        // Everything that was started ends, once.
        while (over < started) over += Await(mesh).size();
        EXPECT_EQ(over, started);
      });
    }
    std::vector<std::thread> closing;
    for (auto& mesh : meshes) {
      std::this_thread::sleep_for(std::chrono::milliseconds(turn % 4));
      closing.emplace_back([&mesh, turn] { mesh->Close(std::chrono::milliseconds(turn % 3)); });
    }
    for (std::thread& thread : closing) thread.join();
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(Closing, SocketsBelongToAMeshThatRefusesThem) {
  const auto [own, other] = Connected(Wire::kPair);
  EXPECT_THROW(Mesh(0, {-1, own}, 0), std::invalid_argument);
  char byte;
  EXPECT_EQ(read(other, &byte, 1), 0);  // closed
  close(other);
  const auto [one, two] = Connected(Wire::kPair);
  EXPECT_THROW(Mesh(0, {one, two}, 4096), std::invalid_argument);
  EXPECT_THROW(Mesh(2, {-1, -1}, 4096), std::invalid_argument);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_THROW(Mesh(0, {-1, ends[0]}, 4096), std::invalid_argument);
  close(ends[1]);
}

}  // namespace
}  // namespace byteprophet::exchange
