// Random numbers for the scenarios: a small generator (SplitMix64) whose numbers are the same with
// every compiler and library, so that a seed names a scenario.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace prophet {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Bits() {
    uint64_t bits = state_ += 0x9e3779b97f4a7c15;
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
    return bits ^ bits >> 31;
  }
  // Both ends included.
  int64_t Uniform(int64_t low, int64_t high) {
    const auto span = static_cast<uint64_t>(high - low) + 1;
    return low + static_cast<int64_t>(Bits() % span);
  }
  // Each power of two about as often as the next.
  int64_t Magnitude(int64_t low, int64_t high) {
    int64_t cap = high;
    while (cap / 2 >= low && cap > 1 && Chance(50)) cap /= 2;
    return Uniform(low, cap);
  }
  bool Chance(int percent) { return Uniform(1, 100) <= percent; }

  template <typename T>
  void Shuffle(std::vector<T>& values) {
    for (size_t left = values.size(); left > 1; --left) {
      std::swap(values[left - 1],
                values[static_cast<size_t>(Uniform(0, static_cast<int64_t>(left) - 1))]);
    }
  }

 private:
  uint64_t state_;
};

}  // namespace prophet
