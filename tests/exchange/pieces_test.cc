// Contributions that come in pieces of any size, early or late, are summed as they come: the sums
// are those of complete parts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "exchange/sums.h"
#include "peers.h"

namespace byteprophet::exchange {
namespace {

using Bytes = std::vector<std::byte>;

struct Case {
  int ranks;
  Dtype dtype;
  uint64_t elements;  // of each of the two tensors
};

// Small numbers in every type: bits of a float16 or bfloat16 are numbers, too.
Bytes RandomBytes(Dtype dtype, uint64_t elements, std::mt19937& random) {
  const size_t size = FactsOf(dtype).size_bytes;
  Bytes bytes(elements * size);
  for (uint64_t i = 0; i < elements; ++i) {
    const float single = static_cast<float>(random() % 2001) / 7 - 143;
    const double wide = single / 3;
    const auto half = static_cast<uint16_t>(std::bit_cast<uint32_t>(single) >> 16);
    const void* from = &single;
    if (dtype == Dtype::kBfloat16) from = &half;
    if (dtype == Dtype::kFloat64) from = &wide;
    if (dtype == Dtype::kUint8) from = reinterpret_cast<const uint8_t*>(&single) + 1;
    std::memcpy(bytes.data() + i * size, from, size);
  }
  return bytes;
}

// What rank 0 has of all ranks' values, by `Sum` over complete parts.
Bytes Expected(const Case& of, const std::vector<std::vector<Bytes>>& values, size_t tensor,
               uint64_t owned) {
  std::vector<const std::byte*> parts;
  for (const auto& tensors : values) parts.push_back(tensors[tensor].data());
  Bytes expected = values[0][tensor];
  Sum(of.dtype, parts, owned, FactsOf(of.dtype).has_fractions, expected.data());
  return expected;
}

void Check(const Case& of, unsigned seed) {
  SCOPED_TRACE(testing::Message() << of.ranks << " ranks, " << FactsOf(of.dtype).name << ", "
                                  << of.elements << " elements, seed " << seed);
  std::mt19937 random(seed);
  const size_t size = FactsOf(of.dtype).size_bytes;
  const uint64_t owned = of.elements / static_cast<uint64_t>(of.ranks);
  std::vector<std::vector<Bytes>> values;
  for (int rank = 0; rank < of.ranks; ++rank)
    values.push_back(
        {RandomBytes(of.dtype, of.elements, random), RandomBytes(of.dtype, of.elements, random)});
  std::vector<Bytes> own = values[0];

  Alone alone(0, of.ranks);
  struct Sending {
    int rank;
    Bytes part;
    size_t sent_bytes = 0;
  };
  std::vector<Sending> sending;
  for (int rank = 1; rank < of.ranks; ++rank) {
    Sending& each = sending.emplace_back(Sending{rank, {}});
    for (const Bytes& tensor : values[static_cast<size_t>(rank)])
      each.part.insert(each.part.end(), tensor.begin(),
                       tensor.begin() + static_cast<ptrdiff_t>(owned * size));
  }
  // Rank 0 owns the first of each tensor's shares, which begin at n r / P.
  ASSERT_EQ(of.elements % static_cast<uint64_t>(of.ranks), 0u);
  size_t turns_before_start = random() % 20;
  const auto start = [&] {
    std::vector<Tensor> tensors;
    for (Bytes& each : own) tensors.push_back({each.data(), of.elements});
    alone.mesh->Begin(Kind::kReduce, 1, tensors, of.dtype, FactsOf(of.dtype).has_fractions, 0);
  };
  if (turns_before_start == 0) start();
  while (!sending.empty()) {
    Sending& each = sending[random() % sending.size()];
    Peer& peer = alone.peer(each.rank);
    const size_t left = each.part.size() - each.sent_bytes;
    const size_t frame = std::min<size_t>(left, 1 + random() % 100'000);
    // `Header::dtype` is kFloat32 = 0 in SendHeader, so the frame is made here.
    Header header{};
    header.kind = Kind::kReduce;
    header.dtype = of.dtype;
    header.operation = 1;
    header.whole_bytes = own.size() * own[0].size();
    header.total_bytes = each.part.size();
    header.offset_bytes = each.sent_bytes;
    header.length_bytes = frame;
    peer.Send(Pack(header));
    for (size_t done = 0; done < frame;) {
      const size_t piece = std::min<size_t>(frame - done, 1 + random() % 30'000);
      peer.Send(std::span(each.part).subspan(each.sent_bytes + done, piece));
      if (random() % 4 == 0) peer.AwaitTaken();
      done += piece;
    }
    each.sent_bytes += frame;
    if (each.sent_bytes == each.part.size())
      std::erase_if(sending, [&](const Sending& other) { return other.rank == each.rank; });
    if (turns_before_start > 0 && --turns_before_start == 0) start();
  }
  if (turns_before_start > 0) start();
  for (int rank = 1; rank < of.ranks; ++rank) {  // what rank 0 has for it
    size_t read_bytes = 0;
    while (read_bytes < 2 * owned * size) read_bytes += alone.peer(rank).Read()->body.size();
  }
  EXPECT_EQ(Await(*alone.mesh), (std::vector<Over>{{1, std::nullopt}}));
  for (size_t tensor = 0; tensor < own.size(); ++tensor)
    EXPECT_TRUE(own[tensor] == Expected(of, values, tensor, owned)) << "tensor " << tensor;
}

TEST(Pieces, SumsAreThoseOfCompleteParts) {
  constexpr Dtype kSome[] = {Dtype::kFloat32, Dtype::kBfloat16, Dtype::kFloat64, Dtype::kUint8};
  unsigned seed = 0;
  for (const int ranks : {2, 3, 4}) {
    for (const Dtype dtype : kSome) {
      for (const uint64_t shares : {1, 1000, 100'000})
        Check({ranks, dtype, shares * static_cast<uint64_t>(ranks)}, ++seed);
    }
  }
}

}  // namespace
}  // namespace byteprophet::exchange
