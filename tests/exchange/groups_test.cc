// Random groups of operations among 1 to 16 ranks, with equal and unequal owners, started by each
// rank in an order of its own with positions of its own, against a plain reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <set>

#include "peers.h"

namespace byteprophet::exchange {
namespace {

using Bytes = std::vector<std::byte>;

// Elements whose sums need no rounding, but for float32, which is summed in the order of ranks.
Bytes RandomElements(Dtype dtype, uint64_t count, std::mt19937& random) {
  const size_t size = FactsOf(dtype).size_bytes;
  Bytes bytes(count * size);
  for (uint64_t i = 0; i < count; ++i) {
    const int value = static_cast<int>(random() % 15) - 7;
    std::byte* const to = bytes.data() + i * size;
    const auto put = [to](auto element) { std::memcpy(to, &element, sizeof(element)); };
    switch (dtype) {
      case Dtype::kFloat32:
        put(static_cast<float>(value) / 3);
        break;
      case Dtype::kFloat64:
        put(static_cast<double>(value));
        break;
      case Dtype::kBfloat16:  // the upper half of a float
        put(static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16));
        break;
      case Dtype::kBool:
        put(static_cast<uint8_t>(value > 0));
        break;
      default: {
        const auto wide = static_cast<int64_t>(value);
        std::memcpy(to, &wide, size);  // little endian, and two's complement
      }
    }
  }
  return bytes;
}

Bytes SumOf(Dtype dtype, const std::vector<const std::byte*>& parts) {
  const size_t size = FactsOf(dtype).size_bytes;
  float single = 0;
  double wide = 0;
  uint64_t integer = 0;
  for (size_t r = 0; r < parts.size(); ++r) {
    float f = 0;
    double d = 0;
    uint64_t i = 0;
    uint16_t upper = 0;
    if (dtype == Dtype::kFloat32) std::memcpy(&f, parts[r], 4);
    if (dtype == Dtype::kFloat64) std::memcpy(&d, parts[r], 8);
    if (dtype == Dtype::kBfloat16) {
      std::memcpy(&upper, parts[r], 2);
      f = std::bit_cast<float>(static_cast<uint32_t>(upper) << 16);
    }
    std::memcpy(&i, parts[r], size);
    single = r == 0 ? f : single + f;
    wide += d;
    integer = dtype == Dtype::kBool ? integer | i : integer + i;
  }
  Bytes sum(size);
  const auto upper = static_cast<uint16_t>(std::bit_cast<uint32_t>(single) >> 16);
  const void* const from = dtype == Dtype::kFloat32    ? static_cast<const void*>(&single)
                           : dtype == Dtype::kFloat64  ? static_cast<const void*>(&wide)
                           : dtype == Dtype::kBfloat16 ? static_cast<const void*>(&upper)
                                                       : static_cast<const void*>(&integer);
  std::memcpy(sum.data(), from, size);
  return sum;
}

struct Group {
  Kind kind;
  bool then_gather = false;  // after the reduce
  Dtype dtype;
  std::vector<uint64_t> weights;            // none: equal ones
  std::vector<uint64_t> elements;           // of its tensors
  std::vector<std::vector<Bytes>> tensors;  // by rank and tensor
  std::vector<std::vector<Bytes>> expected;
};

// Many of them 0, and few of them large.
std::vector<uint64_t> RandomWeights(int ranks, std::mt19937& random) {
  std::vector<uint64_t> weights;
  for (int r = 0; r < ranks; ++r)
    weights.push_back(random() % 3 == 0 ? 0 : 1 + (random() % 1000 >> random() % 10));
  weights[random() % weights.size()] += 1;
  return weights;
}

Group RandomGroup(int ranks, uint64_t most_elements, std::mt19937& random) {
  constexpr Dtype kSome[] = {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16, Dtype::kInt64,
                             Dtype::kInt16,   Dtype::kInt8,    Dtype::kUint8,    Dtype::kBool};
  Group group;
  group.kind = random() % 3 == 0 ? Kind::kGather : Kind::kReduce;
  group.then_gather = group.kind == Kind::kReduce && random() % 2 == 0;
  group.dtype = kSome[random() % std::size(kSome)];
  if (random() % 2 == 0) group.weights = RandomWeights(ranks, random);
  for (auto left = random() % 6; left > 0; --left)  // few elements are as likely as many
    group.elements.push_back(random() % (1 + (most_elements >> random() % 12)));
  for (int r = 0; r < ranks; ++r) {
    auto& tensors = group.tensors.emplace_back();
    for (const uint64_t count : group.elements)
      tensors.push_back(RandomElements(group.dtype, count, random));
  }
  group.expected = group.tensors;
  const size_t size = FactsOf(group.dtype).size_bytes;
  const auto of = static_cast<uint64_t>(ranks);
  const std::vector<uint64_t> weights =
      group.weights.empty() ? std::vector<uint64_t>(of, 1) : group.weights;
  const uint64_t all = std::accumulate(weights.begin(), weights.end(), uint64_t{0});
  for (size_t t = 0; t < group.elements.size(); ++t) {
    uint64_t before = 0;
    for (uint64_t owner = 0; owner < of; before += weights[owner++]) {
      const uint64_t n = group.elements[t];
      for (uint64_t i = before * n / all; i < (before + weights[owner]) * n / all; ++i) {
        std::vector<const std::byte*> parts;
        for (auto& tensors : group.tensors) parts.push_back(tensors[t].data() + i * size);
        if (group.kind == Kind::kReduce) {
          const Bytes sum = SumOf(group.dtype, parts);
          for (uint64_t r = 0; r < of; ++r) {
            if (r == owner || group.then_gather)
              std::memcpy(group.expected[r][t].data() + i * size, sum.data(), size);
          }
        } else {
          for (auto& tensors : group.expected)
            std::memcpy(tensors[t].data() + i * size, parts[owner], size);
        }
      }
    }
  }
  return group;
}

void Check(int ranks, Wire wire, size_t frame_bytes, uint64_t most_elements, unsigned seed) {
  SCOPED_TRACE(testing::Message() << ranks << " ranks, frames of " << frame_bytes << ", seed "
                                  << seed);
  std::mt19937 random(seed);
  std::vector<Group> groups;
  for (auto left = 1 + random() % 12; left > 0; --left)
    groups.push_back(RandomGroup(ranks, most_elements, random));
  auto meshes = Meshes(ranks, wire, frame_bytes);

  // Ranks take turns at random, each with an order of its own.
  std::vector<size_t> turns;
  std::vector<std::vector<size_t>> orders;
  for (int r = 0; r < ranks; ++r) {
    std::vector<size_t> order(groups.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    orders.push_back(order);
    turns.insert(turns.end(), groups.size(), static_cast<size_t>(r));
  }
  std::shuffle(turns.begin(), turns.end(), random);
  for (const size_t rank : turns) {
    const size_t number = orders[rank].back();
    orders[rank].pop_back();
    Group& group = groups[number];
    std::vector<Tensor> tensors;
    for (size_t t = 0; t < group.elements.size(); ++t)
      tensors.push_back({group.tensors[rank][t].data(), group.elements[t]});
    const auto position = [&] { return static_cast<int64_t>(random() % 5); };
    std::optional<Mesh::Then> then;
    if (group.then_gather)
      then = {.number = groups.size() + number, .position = position(), .tells_sum = true};
    meshes[rank]->Begin(group.kind, number, tensors, group.dtype, false, position(), group.weights,
                        then);
  }
  const auto reported = std::accumulate(
      groups.begin(), groups.end(), groups.size(),
      [](size_t sum, const Group& group) { return sum + (group.then_gather ? 1 : 0); });
  for (auto& mesh : meshes) {
    std::set<uint64_t> summed;
    for (const auto& [number, error] : Await(*mesh, reported)) {
      EXPECT_EQ(error, std::nullopt) << number;
      if (number < groups.size()) {
        summed.insert(number);
      } else {
        EXPECT_TRUE(summed.contains(number - groups.size())) << number;
      }
    }
    EXPECT_TRUE(mesh->Completed({}).empty());
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t r = 0; r < meshes.size(); ++r)
      EXPECT_EQ(groups[g].tensors[r], groups[g].expected[r]) << "group " << g << " of rank " << r;
  }
  uint64_t sent = 0, received = 0;
  for (auto& mesh : meshes) {
    sent += mesh->sent().payload_bytes;
    received += mesh->received().payload_bytes;
  }
  EXPECT_EQ(sent, received);
  CloseAll(meshes);
}

TEST(Groups, OfFewRanks) {
  for (unsigned seed = 0; seed < 60; ++seed)
    Check(1 + static_cast<int>(seed % 5), Wire::kPair, seed % 2 == 0 ? 4096 : 100, 3000, seed);
}

TEST(Groups, OfManyRanks) {
  for (unsigned seed = 0; seed < 4; ++seed)
    Check(13 + static_cast<int>(seed), Wire::kPair, 4096, 3000, seed);
}

TEST(Groups, InFramesOfAByte) {
  for (unsigned seed = 0; seed < 5; ++seed) Check(3, Wire::kPair, 1, 60, seed);
}

TEST(Groups, OverLoopback) {
  for (unsigned seed = 0; seed < 6; ++seed)
    Check(2 + static_cast<int>(seed % 3), Wire::kTcp, 1 << 18, 100'000, seed);
}

TEST(Groups, AveragesAreSumsTimesAPart) {
  auto meshes = Meshes(3, Wire::kPair);
  std::vector<std::vector<float>> values{{1, 2, 3}, {10, 20, 30}, {0.5f, 7, 1e-3f}};
  for (size_t r = 0; r < 3; ++r) {
    const Tensor tensor = TensorOf(values[r]);
    meshes[r]->Begin(Kind::kReduce, 5, {&tensor, 1}, Dtype::kFloat32, true, 0);
  }
  for (auto& mesh : meshes) EXPECT_EQ(Await(*mesh), (std::vector<Over>{{5, std::nullopt}}));
  const auto third = static_cast<float>(1.0 / 3);
  EXPECT_EQ(values[0], (std::vector<float>{(1 + 10 + 0.5f) * third, 2, 3}));
  EXPECT_EQ(values[1], (std::vector<float>{10, (2 + 20 + 7.f) * third, 30}));
  EXPECT_EQ(values[2], (std::vector<float>{0.5f, 7, (3 + 30 + 1e-3f) * third}));
  CloseAll(meshes);
}

// More pieces than one call of the kernel takes.
TEST(Groups, OfThousandsOfSmallTensors) {
  auto meshes = Meshes(2, Wire::kPair, 1 << 18);
  std::vector<std::vector<float>> values(2, std::vector<float>(10'000, 1));
  for (size_t r = 0; r < 2; ++r) {
    std::vector<Tensor> tensors;
    for (size_t i = 0; i < values[r].size(); i += 2)
      tensors.push_back({reinterpret_cast<std::byte*>(&values[r][i]), 2});
    meshes[r]->Begin(Kind::kReduce, 1, tensors, Dtype::kFloat32, false, 0);
  }
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(Await(*meshes[r]), (std::vector<Over>{{1, std::nullopt}}));
    for (size_t i = 0; i < values[r].size(); ++i) ASSERT_EQ(values[r][i], i % 2 == r ? 2 : 1);
  }
  CloseAll(meshes);
}

TEST(Groups, WithNothingForAnybodyAreOverAtOnce) {
  Alone alone(0, 3);
  std::vector<float> none;
  Begin(*alone.mesh, Kind::kReduce, 1, none);
  EXPECT_EQ(Await(*alone.mesh), (std::vector<Over>{{1, std::nullopt}}));
  alone.mesh->Begin(Kind::kGather, 2, {}, Dtype::kBool, false, 0);
  EXPECT_EQ(Await(*alone.mesh), (std::vector<Over>{{2, std::nullopt}}));
  // Rank 2 owns the only element: rank 0 sends it something and waits for nobody.
  std::vector<float> one{4};
  Begin(*alone.mesh, Kind::kReduce, 3, one);
  EXPECT_EQ(Await(*alone.mesh), (std::vector<Over>{{3, std::nullopt}}));
  EXPECT_EQ(alone.peer(2).Read()->header.total_bytes, 4u);
}

// An all-reduce of random floats, whose sums depend on the order of their terms.
std::vector<float> AllReduced(const std::vector<uint64_t>& weights, bool average) {
  std::mt19937 random(7);
  auto meshes = Meshes(4, Wire::kPair);
  std::vector<std::vector<float>> values(meshes.size(), std::vector<float>(1001));
  for (auto& of_rank : values)
    for (float& value : of_rank)
      value = std::ldexp(static_cast<float>(random()), -static_cast<int>(random() % 40));
  for (const uint64_t number : {1, 2}) {
    for (size_t r = 0; r < meshes.size(); ++r) {
      const Tensor tensor = TensorOf(values[r]);
      meshes[r]->Begin(number == 1 ? Kind::kReduce : Kind::kGather, number, {&tensor, 1},
                       Dtype::kFloat32, average && number == 1, 0, weights);
    }
    for (auto& mesh : meshes) EXPECT_EQ(Await(*mesh), (std::vector<Over>{{number, std::nullopt}}));
  }
  for (const auto& of_rank : values) EXPECT_EQ(of_rank, values[0]);
  CloseAll(meshes);
  return values[0];
}

TEST(Owners, ChangeNoBitOfASum) {
  for (const bool average : {false, true}) {
    const std::vector<float> equal = AllReduced({}, average);
    for (const auto& weights : std::vector<std::vector<uint64_t>>{
             {1, 1, 1, 0}, {0, 0, 5, 0}, {7, 2, 0, 3}, {1, 1, 1, 1}, {1, 1'000'000, 1, 1}})
      EXPECT_EQ(AllReduced(weights, average), equal);
  }
}

TEST(Owners, EachElementHasOneAndWeightsAreProportions) {
  std::mt19937_64 random(3);
  for (int times = 0; times < 2000; ++times) {
    std::vector<uint64_t> weights(1 + random() % 8);
    for (uint64_t& weight : weights) weight = random() % (uint64_t{1} << (1 + random() % 27));
    weights.back() += 1;
    const Owners owners(weights);
    const uint64_t elements = random() >> (24 + random() % 40);
    const uint64_t all = std::accumulate(weights.begin(), weights.end(), uint64_t{0});
    uint64_t before = 0;
    for (size_t r = 0; r <= weights.size(); ++r) {
      const uint64_t begins = owners.Begins(static_cast<int>(r), elements);
      const auto exact = static_cast<long double>(before) * static_cast<long double>(elements) /
                         static_cast<long double>(all);
      EXPECT_NEAR(static_cast<double>(static_cast<long double>(begins) - exact), -0.5, 0.5001);
      if (r < weights.size()) before += weights[r];
    }
    EXPECT_EQ(owners.Begins(0, elements), 0u);
    EXPECT_EQ(owners.Begins(static_cast<int>(weights.size()), elements), elements);
  }
}

TEST(Owners, ThatOwnNothingOrDoNotFitAreRefused) {
  Alone alone(0, 3);
  std::vector<float> values(10);
  const Tensor tensor = TensorOf(values);
  for (const auto& weights : std::vector<std::vector<uint64_t>>{
           {0, 0, 0}, {1, 1}, {1, 1, 1, 1}, {kMostWeight, 1, 0}, {~uint64_t{0}, 1, 1}})
    EXPECT_THROW(
        alone.mesh->Begin(Kind::kReduce, 1, {&tensor, 1}, Dtype::kFloat32, false, 0, weights),
        std::invalid_argument);
}

}  // namespace
}  // namespace byteprophet::exchange
