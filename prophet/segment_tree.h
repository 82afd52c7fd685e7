// A fixed number of values under an associative operation: change one, or combine a prefix, in
// log n. The operation need not commute: values are always combined in order.
#pragma once

#include <bit>
#include <cstddef>
#include <vector>

namespace prophet {

// Monoid: `Value`, `Identity()` and `Combine(left, right)`, both static.
template <typename Monoid>
class SegmentTree {
 public:
  using Value = typename Monoid::Value;

  explicit SegmentTree(size_t count = 0)
      : leaves_(std::bit_ceil(count + 1)), nodes_(2 * leaves_, Monoid::Identity()) {}

  // Leaves read back what Set stored, the identity before.
  const Value& Get(size_t position) const { return nodes_[leaves_ + position]; }

  void Set(size_t position, const Value& value) {
    size_t node = leaves_ + position;
    nodes_[node] = value;
    for (node /= 2; node > 0; node /= 2) {
      nodes_[node] = Monoid::Combine(nodes_[2 * node], nodes_[2 * node + 1]);
    }
  }

  // Positions 0 to count-1 combined.
  Value Prefix(size_t count) const {
    Value result = Monoid::Identity();
    for (size_t end = leaves_ + count; end > 1; end /= 2) {
      if (end % 2 == 1) result = Monoid::Combine(nodes_[end - 1], result);
    }
    return result;
  }

  const Value& All() const { return nodes_[1]; }

 private:
  size_t leaves_;
  std::vector<Value> nodes_;  // node i has children 2i and 2i+1; leaves come last
};

}  // namespace prophet
