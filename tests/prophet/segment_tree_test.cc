#include "prophet/segment_tree.h"

#include <gtest/gtest.h>

#include <string>

namespace prophet {
namespace {

// Concatenation does not commute: order shows.
struct Concatenation {
  using Value = std::string;
  static Value Identity() { return ""; }
  static Value Combine(const Value& left, const Value& right) { return left + right; }
};

TEST(SegmentTree, CombinesEveryPrefixInOrder) {
  for (size_t count = 0; count <= 17; ++count) {
    SegmentTree<Concatenation> tree(count);
    std::string all;
    for (size_t i = 0; i < count; ++i) all += static_cast<char>('a' + i);
    for (size_t i = count; i-- > 0;) tree.Set(i, all.substr(i, 1));
    EXPECT_EQ(tree.All(), all);
    for (size_t end = 0; end <= count; ++end) EXPECT_EQ(tree.Prefix(end), all.substr(0, end));
  }
}

TEST(SegmentTree, SetReplaces) {
  SegmentTree<Concatenation> tree(3);
  EXPECT_EQ(tree.Get(1), "");
  tree.Set(1, "x");
  tree.Set(1, "y");
  EXPECT_EQ(tree.Get(1), "y");
  EXPECT_EQ(tree.All(), "y");
  EXPECT_EQ(tree.Prefix(1), "");
}

}  // namespace
}  // namespace prophet
