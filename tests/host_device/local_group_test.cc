// Results of all collectives, compared with what one process computes.
#include "local_group.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "ranks.h"

namespace byteprophet {
namespace {

using Bytes = std::vector<std::byte>;
using Kind = Collective::Kind;
constexpr std::chrono::seconds kTimeout{60};
const std::vector<std::string> kAllWell[] = {{}, {""}, {"", ""}, {"", "", ""}, {"", "", "", ""}};

// A call with its input on every rank, made from a seed: all ranks make the same.
struct Case {
  Kind kind;
  ElementType type;
  size_t count;
  int root;
  bool in_place;
  std::vector<Bytes> inputs;
};

template <typename T>
void Fill(Bytes& bytes, std::mt19937& random) {
  std::vector<T> values(bytes.size() / sizeof(T));
  for (T& value : values) {
    if constexpr (std::is_floating_point_v<T>) {
      value =
          static_cast<T>(std::ldexp(static_cast<double>(random()) - 2e9, -28 - int(random() % 9)));
    } else {
      value = static_cast<T>(random() * 0x9E3779B97F4A7C15U);
    }
  }
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
}

// Those of BytePS.
constexpr std::array kTypes = {ElementType::kInt8,    ElementType::kInt32,   ElementType::kInt64,
                               ElementType::kFloat16, ElementType::kFloat32, ElementType::kFloat64};

void FillHalf(Bytes& bytes, std::mt19937& random) {
  std::vector<uint16_t> values(bytes.size() / 2);
  for (uint16_t& value : values)  // of either sign, from 2^-5 to 2^3
    value = static_cast<uint16_t>((random() & 0x83ff) | ((10 + random() % 8) << 10));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
}

Bytes Random(size_t size_bytes, ElementType type, std::mt19937& random) {
  Bytes bytes(size_bytes);
  switch (type) {
    case ElementType::kFloat16:
      FillHalf(bytes, random);
      break;
    case ElementType::kFloat32:
      Fill<float>(bytes, random);
      break;
    case ElementType::kFloat64:
      Fill<double>(bytes, random);
      break;
    default:
      Fill<uint8_t>(bytes, random);
  }
  return bytes;
}

Case MakeCase(int size, std::mt19937& random) {
  Case made{};
  made.kind = static_cast<Kind>(random() % 4);
  made.type = kTypes[random() % kTypes.size()];
  // Nothing, less than the ranks, around a step, and several steps.
  const size_t around_a_step = 256 * 1024 / SizeBytes(made.type);
  const std::array<size_t, 4> most = {5, 4000, around_a_step + 3, 5 * around_a_step};
  made.count = random() % most[random() % most.size()];
  made.root = static_cast<int>(random() % static_cast<uint32_t>(size));
  made.in_place = random() % 2 == 0;
  const size_t blocks = made.kind == Kind::kReduceScatter ? static_cast<size_t>(size) : 1;
  for (int rank = 0; rank < size; ++rank)
    made.inputs.push_back(Random(blocks * made.count * SizeBytes(made.type), made.type, random));
  return made;
}

Bytes Sum(const Case& c) {
  Bytes sum(c.inputs[0].size());
  std::vector<const void*> from;
  for (const Bytes& input : c.inputs) from.push_back(input.data());
  SumOverRanks(sum.data(), from.data(), static_cast<int>(from.size()),
               sum.size() / SizeBytes(c.type), c.type);
  return sum;
}

// What `rank` must have afterwards, empty where it receives nothing.
Bytes Expected(const Case& c, int rank) {
  const size_t block = c.count * SizeBytes(c.type);
  const auto own = static_cast<std::ptrdiff_t>(block) * rank;
  switch (c.kind) {
    case Kind::kReduce:
      return rank == c.root ? Sum(c) : Bytes();
    case Kind::kBroadcast:
      return c.inputs[static_cast<size_t>(c.root)];
    case Kind::kReduceScatter: {
      const Bytes sum = Sum(c);
      return {sum.begin() + own, sum.begin() + own + static_cast<std::ptrdiff_t>(block)};
    }
    case Kind::kAllGather: {
      Bytes all;
      for (const Bytes& input : c.inputs) all.insert(all.end(), input.begin(), input.end());
      return all;
    }
  }
  return {};
}

// One rank's memory for a case. In place, as BytePS does it: own block of reduce-scatter's input,
// own block of all-gather's output.
class Memory {
 public:
  Memory(const Case& c, int rank, int size) : case_(c) {
    const size_t block = c.count * SizeBytes(c.type);
    const size_t own = block * static_cast<size_t>(rank);
    const Bytes& input = c.inputs[static_cast<size_t>(rank)];
    const bool gathers = c.kind == Kind::kAllGather;
    const size_t received = gathers ? block * static_cast<size_t>(size) : block;
    if (!c.in_place) {
      from_ = input;
      to_.resize(received);
      call_ = {c.kind, c.type, c.count, from_.data(), to_.data(), c.root};
      return;
    }
    to_.resize(std::max(received, input.size()));
    std::byte* const base = to_.data();
    std::byte* const block_of_own = base + (gathers || c.kind == Kind::kReduceScatter ? own : 0);
    std::copy(input.begin(), input.end(), gathers ? block_of_own : base);
    call_ = {c.kind, c.type, c.count, gathers ? block_of_own : base, gathers ? base : block_of_own,
             c.root};
  }

  const Collective& call() const { return call_; }
  bool Has(const Bytes& expected) const {
    return expected.empty() || std::memcmp(call_.to, expected.data(), expected.size()) == 0;
  }

 private:
  const Case& case_;
  Bytes from_;
  Bytes to_;
  Collective call_{};
};

void RunRandomBatches(LocalGroup& group, uint32_t seed, int batches) {
  std::mt19937 random(seed);  // the same on all ranks
  std::mt19937 own(seed + 1000 + static_cast<uint32_t>(group.rank()));
  for (int batch = 0; batch < batches; ++batch) {
    std::vector<Case> cases;
    const size_t length = 1 + random() % 4;
    for (size_t i = 0; i < length; ++i) cases.push_back(MakeCase(group.size(), random));
    std::vector<Memory> memories;
    std::vector<Collective> calls;
    memories.reserve(cases.size());
    for (const Case& c : cases) memories.emplace_back(c, group.rank(), group.size());
    for (const Memory& memory : memories) calls.push_back(memory.call());
    if (own() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 2000));
    group.Run(calls);
    for (size_t i = 0; i < cases.size(); ++i) {
      if (!memories[i].Has(Expected(cases[i], group.rank())))
        throw LocalGroupError("wrong bytes in batch " + std::to_string(batch) + " call " +
                              std::to_string(i));
    }
  }
}

class LocalGroupTest : public testing::TestWithParam<int> {};

TEST_P(LocalGroupTest, RandomCollectivesBetweenThreads) {
  const int size = GetParam();
  const std::string name = FreshName();
  EXPECT_EQ(RunThreads(size,
                       [&](int rank) {
                         LocalGroup group(name, rank, size, kTimeout);
                         RunRandomBatches(group, 7U * static_cast<uint32_t>(size), 20);
                       }),
            kAllWell[size]);
  EXPECT_FALSE(IsThere(name));
}

TEST_P(LocalGroupTest, RandomCollectivesBetweenProcesses) {
  const int size = GetParam();
  const std::string name = FreshName();
  EXPECT_EQ(RunProcesses(size,
                         [&](int rank) {
                           LocalGroup group(name, rank, size, kTimeout);
                           RunRandomBatches(group, 11U * static_cast<uint32_t>(size), 20);
                         }),
            kAllWell[size]);
  EXPECT_FALSE(IsThere(name));
}

INSTANTIATE_TEST_SUITE_P(Ranks, LocalGroupTest, testing::Values(1, 2, 3, 4));

// The name must be gone before the first collective: from then on nothing can be left behind.
TEST(LocalGroupNameTest, IsGoneOnceAllHaveMet) {
  const std::string name = FreshName();
  EXPECT_EQ(RunProcesses(3,
                         [&](int rank) {
                           LocalGroup group(name, rank, 3, kTimeout);
                           if (IsThere(name)) throw LocalGroupError("still there");
                         }),
            kAllWell[3]);
}

// A fast pair of ranks must not overtake a slow one by more than the buffers hold.
TEST(LocalGroupPaceTest, SlowRankSeesEveryBroadcast) {
  const std::string name = FreshName();
  const auto body = [&](int rank) {
    LocalGroup group(name, rank, 3, kTimeout);
    for (int value = 1; value <= 200; ++value) {
      int there = rank == 0 ? value : 0;
      if (rank == 2 && value % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      group.Run({{Kind::kBroadcast, ElementType::kInt32, 1, &there, &there, 0}});
      if (there != value) throw LocalGroupError("got " + std::to_string(there));
    }
  };
  EXPECT_EQ(RunProcesses(3, body), kAllWell[3]);
}

}  // namespace
}  // namespace byteprophet
