#include "prophet/policy/fifo.h"

#include <gtest/gtest.h>

#include "drain.h"
#include "prophet/registry.h"

namespace prophet {
namespace {

TEST(Fifo, ArrivalOrderWhateverThePriority) {
  const auto policy = MakePolicy("fifo");
  policy->OnReady({.key = 3, .server = 0, .priority = -9, .bytes = 1u << 30}, 0);
  policy->OnReady({.key = 1, .server = 1, .priority = -1, .bytes = 1u << 30}, 0);
  policy->OnReady({.key = 2, .server = 0, .priority = 5, .bytes = 1u << 30}, 0);
  EXPECT_EQ(policy->pending(), 3u);
  EXPECT_EQ(Drain(*policy), (Keys{3, 1, 2}));
  EXPECT_EQ(policy->pending(), 0u);
}

TEST(Fifo, WaitsForNoAcknowledgement) {
  const auto policy = MakePolicy("fifo");
  for (uint64_t key = 0; key < 5000; ++key) policy->OnReady({.key = key}, 0);
  EXPECT_EQ(Drain(*policy).size(), 5000u);
}

}  // namespace
}  // namespace prophet
