// What the tests of the mesh are made with: connections, meshes at both ends of them, and peers
// that the tests play themselves, frame by frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exchange/mesh.h"

namespace byteprophet::exchange {

constexpr std::chrono::seconds kLong{100};
constexpr size_t kFrameBytes = 4096;

enum class Wire { kPair, kTcp };

// Two connected sockets.
std::pair<int, int> Connected(Wire wire);

// A mesh for each of `ranks`, all connected.
std::vector<std::unique_ptr<Mesh>> Meshes(int ranks, Wire wire, size_t frame_bytes = kFrameBytes);

// At the same time, as each waits for the others to have received all.
void CloseAll(std::vector<std::unique_ptr<Mesh>>& meshes);

// The next `count` operations that are over, each once.
std::vector<Over> Await(Mesh& mesh, size_t count = 1);

template <typename T>
Tensor TensorOf(std::vector<T>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size()};
}

// Starts an operation on one tensor of floats.
void Begin(Mesh& mesh, Kind kind, uint64_t number, std::vector<float>& values,
           int64_t position = 0);

struct Received {
  Header header;
  std::vector<std::byte> body;

  std::string text() const { return {reinterpret_cast<const char*>(body.data()), body.size()}; }
};

// A rank that the test plays. Waits without limit: the test itself has one.
class Peer {
 public:
  Peer(int fd, int ranks) : socket_(fd), ranks_(ranks) {}

  void Send(std::span<const std::byte> bytes) const;
  // A header of `length` bytes of `total`, of `whole` for all ranks (0: as many for each), from
  // `offset` on; the bytes are sent by themselves.
  void SendHeader(Kind kind, uint64_t number, uint64_t total, uint64_t offset, uint64_t length,
                  uint64_t whole = 0) const;
  // All of a part, as one frame.
  void SendPart(Kind kind, uint64_t number, std::span<const float> values,
                uint64_t whole = 0) const;
  void SayGoodbye() const { SendHeader(Kind::kGoodbye, 0, 0, 0, 0); }
  // Until the mesh has taken everything from a socket pair.
  void AwaitTaken() const;
  // The next frame; nothing at the end.
  std::optional<Received> Read() const;
  void Leave() { socket_ = Descriptor(); }

 private:
  bool ReadAll(std::span<std::byte> out) const;

  Descriptor socket_;
  int ranks_;
};

// One mesh among peers that the test plays. Its sockets take little at once. Tensors of operations
// that do not end are made before it, as it may send them until it is gone.
struct Alone {
  explicit Alone(int rank, int ranks);

  Peer& peer(int rank) { return *peers[static_cast<size_t>(rank)]; }

  std::vector<std::optional<Peer>> peers;  // by rank
  std::unique_ptr<Mesh> mesh;
};

}  // namespace byteprophet::exchange
