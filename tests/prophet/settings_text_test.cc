#include "prophet/settings_text.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace prophet {
namespace {

TEST(SettingsText, Pairs) {
  EXPECT_EQ(ParseSettings(""), Settings{});
  EXPECT_EQ(ParseSettings("credit_bytes=12"), (Settings{{"credit_bytes", 12}}));
  EXPECT_EQ(ParseSettings("a=1,b=-2"), (Settings{{"a", 1}, {"b", -2}}));
}

TEST(SettingsText, RefusesAnythingElse) {
  for (const char* text : {"a", "a=", "=1", "a=x", "a=1x", "a=1.5", "a=1,,b=2", ",", "a =1,b",
                           "a=99999999999999999999", "a=1,a=1"}) {
    EXPECT_THROW(ParseSettings(text), std::invalid_argument) << text;
  }
}

}  // namespace
}  // namespace prophet
