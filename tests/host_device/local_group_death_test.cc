// What happens when ranks die, disagree or do not come: an error with a reason, never a hang.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>
#include <vector>

#include "local_group.h"
#include "ranks.h"

namespace byteprophet {
namespace {

using Kind = Collective::Kind;
constexpr std::chrono::seconds kLong{50};
constexpr std::chrono::milliseconds kShort{300};

std::vector<float> many(1'000'000, 1.0F);

Collective Gather(std::vector<float>& to, size_t count) {
  return {Kind::kAllGather, ElementType::kFloat32, count, many.data(), to.data()};
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(LocalGroupDeathTest, KilledRankIsNamedLongBeforeTheTimeLimit) {
  for (int round = 0; round < 6; ++round) {
    const std::string name = FreshName();
    const auto body = [&](int rank) {
      LocalGroup group(name, rank, 3, kLong);
      std::vector<float> to(3 * many.size());
      std::thread killer;
      if (rank == 1) {
        killer = std::thread([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(3 * round));
          kill(getpid(), SIGKILL);
        });
      }
      for (;;) group.Run({Gather(to, many.size())});
    };
    const auto outcomes = RunProcesses(3, body, std::chrono::seconds(20));
    EXPECT_EQ(outcomes[1], "killed");
    bool named = false;
    for (const int rank : {0, 2}) {
      const std::string& text = outcomes[static_cast<size_t>(rank)];
      EXPECT_TRUE(Contains(text, "local rank 1 has ended") || Contains(text, "has given up"))
          << text;
      named = named || Contains(text, "local rank 1 has ended");
    }
    EXPECT_TRUE(named);
    EXPECT_FALSE(IsThere(name));
  }
}

TEST(LocalGroupDeathTest, RankThatLeavesIsNamed) {
  const std::string name = FreshName();
  const auto outcomes = RunThreads(2, [&](int rank) {
    LocalGroup group(name, rank, 2, kLong);
    std::vector<float> to(2 * many.size());
    if (rank == 0) group.Run({Gather(to, 10)});
  });
  EXPECT_TRUE(Contains(outcomes[0], "local rank 1 has ended")) << outcomes[0];
}

TEST(LocalGroupDeathTest, RankThatDoesNotComeIsNamed) {
  const std::string name = FreshName();
  const auto outcomes = RunProcesses(3, [&](int rank) {
    if (rank != 2) LocalGroup(name, rank, 3, kShort);
  });
  EXPECT_TRUE(Contains(outcomes[0] + outcomes[1], "for local rank 2 to come")) << outcomes[0];
  EXPECT_FALSE(IsThere(name));
}

TEST(LocalGroupDeathTest, RankThatIsStuckIsNamedAfterTheTimeLimit) {
  const std::string name = FreshName();
  const auto outcomes = RunProcesses(2, [&](int rank) {
    LocalGroup group(name, rank, 2, kShort);
    std::vector<float> to(2 * many.size());
    if (rank == 1) std::this_thread::sleep_for(10 * kShort);
    group.Run({Gather(to, 10)});
  });
  EXPECT_TRUE(Contains(outcomes[0], "waited 0.3 s for local rank 1 to bring data")) << outcomes[0];
  EXPECT_TRUE(Contains(outcomes[1], "local rank 0 has given up")) << outcomes[1];
}

// Every pair of different calls that could pass for each other.
TEST(LocalGroupDeathTest, RanksThatDisagreeSayWhat) {
  std::vector<float> to(4 * many.size());
  const Collective gather = Gather(to, 10);
  const auto with = [&](auto change) {
    Collective call = gather;
    change(call);
    return call;
  };
  const Collective broadcast = with([](Collective& call) { call.kind = Kind::kBroadcast; });
  const Collective by_rank_1 = with([](Collective& call) {
    call.kind = Kind::kBroadcast;
    call.root = 1;
  });
  const std::vector<std::pair<Collective, Collective>> pairs = {
      {gather, with([](Collective& call) { call.count = 11; })},
      {gather, with([](Collective& call) { call.type = ElementType::kInt32; })},
      {gather, with([](Collective& call) { call.kind = Kind::kReduceScatter; })},
      {gather, broadcast},
      {broadcast, by_rank_1},
      {with([](Collective& call) { call.kind = Kind::kReduce; }), with([](Collective& call) {
         call.kind = Kind::kReduce;
         call.root = 1;
       })},
  };
  for (const auto& [first, second] : pairs) {
    const std::string name = FreshName();
    const auto outcomes = RunProcesses(2, [&](int rank) {
      LocalGroup group(name, rank, 2, kLong);
      const std::vector<Collective> batch = {rank == 0 ? first : second};
      for (int call = 0; call < 3; ++call) group.Run(batch);
    });
    EXPECT_TRUE(Contains(outcomes[0] + outcomes[1], "local ranks do different things"))
        << outcomes[0] << " | " << outcomes[1];
    EXPECT_NE(outcomes[0], "");
    EXPECT_NE(outcomes[1], "");
  }
}

TEST(LocalGroupDeathTest, RanksThatCountDifferentlySaySo) {
  const std::string name = FreshName();
  const auto outcomes = RunProcesses(2, [&](int rank) { LocalGroup(name, rank, 2 + rank, kLong); });
  EXPECT_TRUE(Contains(outcomes[0] + outcomes[1], "another counts")) << outcomes[0];
}

TEST(LocalGroupDeathTest, OneRankTwiceIsRefused) {
  const std::string name = FreshName();
  const auto outcomes = RunProcesses(2, [&](int) { LocalGroup(name, 0, 2, kLong); });
  EXPECT_TRUE(Contains(outcomes[0] + outcomes[1], "two processes say that they are local rank 0"));
}

TEST(LocalGroupDeathTest, NoMemoryIsAnErrorThatNamesTheSegment) {
  try {
    LocalGroup("no/such/name", 0, 2, kShort);
    FAIL() << "a name with slashes was accepted";
  } catch (const LocalGroupError& error) {
    EXPECT_TRUE(Contains(error.what(), "/dev/shm/no/such/name")) << error.what();
  }
}

}  // namespace
}  // namespace byteprophet
