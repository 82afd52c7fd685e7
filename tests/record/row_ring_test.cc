#include "native/row_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

namespace byteprophet {
namespace {

TEST(RowRing, AsAQueueThatDropsItsOldest) {
  for (const size_t room : {1u, 2u, 7u}) {
    std::mt19937 random(static_cast<unsigned>(room));
    RowRing<int> ring;
    ring.MakeRoom(room);
    std::deque<int> expected;
    uint64_t lost = 0;
    for (int turn = 0; turn < 1000; ++turn) {
      if (random() % 2 == 0) {
        ring.Add(turn);
        expected.push_back(turn);
        if (expected.size() > room) {
          expected.pop_front();
          ++lost;
        }
      } else {
        std::vector<int> taken(random() % 4);
        const int count = ring.Take(taken.data(), static_cast<int>(taken.size()));
        ASSERT_EQ(static_cast<size_t>(count), std::min(taken.size(), expected.size()));
        for (int i = 0; i < count; ++i) {
          ASSERT_EQ(taken[static_cast<size_t>(i)], expected.front());
          expected.pop_front();
        }
      }
      ASSERT_EQ(ring.lost(), lost);
    }
    EXPECT_GT(lost, 0u);
  }
}

TEST(RowRing, NothingIsTakenFromNothing) {
  RowRing<int> ring;
  int row = 0;
  EXPECT_EQ(ring.Take(&row, 1), 0);
  ring.MakeRoom(1);
  ring.Add(1);
  EXPECT_EQ(ring.Take(&row, 0), 0);
  EXPECT_EQ(ring.Take(&row, -1), 0);
  EXPECT_EQ(ring.Take(&row, 1), 1);
}

}  // namespace
}  // namespace byteprophet
