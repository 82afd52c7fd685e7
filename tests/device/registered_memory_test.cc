// Pages stay registered while anybody uses them, and no longer, whoever shares them.
#include "registered_memory.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>
#include <vector>

namespace byteprophet {
namespace {

constexpr uintptr_t kPage = 4096;

// Refuses what CUDA refuses: to register a page twice, to unregister what was not registered.
class Cuda {
 public:
  bool Add(void* data, size_t size_bytes) {
    const auto begin = reinterpret_cast<uintptr_t>(data);
    EXPECT_EQ(begin % kPage, 0U);
    EXPECT_EQ(size_bytes % kPage, 0U);
    for (uintptr_t page = begin; page < begin + size_bytes; page += kPage)
      if (page == foreign) return false;
    for (const auto& [first, size] : registered)
      EXPECT_TRUE(begin + size_bytes <= first || first + size <= begin);
    registered[begin] = size_bytes;
    return true;
  }
  void Remove(void* data) { EXPECT_EQ(registered.erase(reinterpret_cast<uintptr_t>(data)), 1U); }
  bool Has(uintptr_t address) const {
    auto piece = registered.upper_bound(address);
    return piece != registered.begin() && (--piece, address < piece->first + piece->second);
  }

  std::map<uintptr_t, size_t> registered;
  uintptr_t foreign = 0;  // a page that the script has registered itself
};

class RegisteredMemoryTest : public testing::Test {
 protected:
  void Begin(uintptr_t address, size_t size_bytes) {
    memory_.Begin(reinterpret_cast<void*>(address), size_bytes);
  }
  void End(uintptr_t address, size_t size_bytes) {
    memory_.End(reinterpret_cast<void*>(address), size_bytes);
  }

  Cuda cuda_;
  RegisteredMemory memory_{[this](void* data, size_t size) { return cuda_.Add(data, size); },
                           [this](void* data) { cuda_.Remove(data); }};
};

TEST_F(RegisteredMemoryTest, WholePagesForAsLongAsTheyAreUsed) {
  Begin(3 * kPage + 100, kPage);
  EXPECT_EQ(cuda_.registered, (std::map<uintptr_t, size_t>{{3 * kPage, 2 * kPage}}));
  End(3 * kPage + 100, kPage);
  EXPECT_TRUE(cuda_.registered.empty());
}

TEST_F(RegisteredMemoryTest, TensorsThatShareAPage) {
  Begin(kPage, 64);
  Begin(kPage + 64, 2 * kPage);
  End(kPage, 64);
  EXPECT_TRUE(cuda_.Has(kPage + 64));
  EXPECT_TRUE(cuda_.Has(3 * kPage));
  End(kPage + 64, 2 * kPage);
  EXPECT_TRUE(cuda_.registered.empty());
}

TEST_F(RegisteredMemoryTest, WhatTheScriptHasRegisteredStaysSo) {
  cuda_.foreign = kPage;
  Begin(kPage + 8, 8);
  End(kPage + 8, 8);
  EXPECT_TRUE(cuda_.registered.empty());
}

TEST_F(RegisteredMemoryTest, AllOfItIsThereWhateverComesAndGoes) {
  std::mt19937 random(1);
  std::vector<std::pair<uintptr_t, size_t>> used;
  for (int turn = 0; turn < 5000; ++turn) {
    if (used.empty() || (used.size() < 12 && random() % 2 == 0)) {
      used.emplace_back(kPage + random() % (40 * kPage), 1 + random() % (5 * kPage));
      Begin(used.back().first, used.back().second);
    } else {
      std::swap(used[random() % used.size()], used.back());
      End(used.back().first, used.back().second);
      used.pop_back();
    }
    for (const auto& [address, size] : used)
      for (uintptr_t at = address; at < address + size; at += kPage) EXPECT_TRUE(cuda_.Has(at));
  }
  for (const auto& [address, size] : used) End(address, size);
  EXPECT_TRUE(cuda_.registered.empty());
}

}  // namespace
}  // namespace byteprophet
