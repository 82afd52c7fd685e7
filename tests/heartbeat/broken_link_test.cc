#include "broken_link.h"

#include <gtest/gtest.h>

namespace byteprophet {
namespace {

TEST(BrokenLink, TheSchedulerRoleSpeaksFirst) {
  BrokenLink link;
  EXPECT_FALSE(link.Pass(100, 15));
  link.Broke("one", false);
  link.Broke("two", true);
  EXPECT_FALSE(link.Pass(10, 15));
  EXPECT_EQ(link.Pass(5, 15), "one");
}

TEST(BrokenLink, WhoWasSilentForLongEnoughIsNamedAtOnce) {
  BrokenLink link;
  link.Broke("one", true);
  EXPECT_EQ(link.Pass(0, 15), "one");
}

TEST(BrokenLink, WhoHasLeftInOrderForgets) {
  BrokenLink link;
  link.Broke("one", false);
  EXPECT_FALSE(link.Pass(14, 15));
  link.Forget();
  EXPECT_FALSE(link.Pass(10, 15));
  link.Broke("two", false);
  EXPECT_FALSE(link.Pass(14, 15));
  EXPECT_EQ(link.Pass(1, 15), "two");
}

}  // namespace
}  // namespace byteprophet
