#include "peers.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <thread>

namespace byteprophet::exchange {

std::pair<int, int> Connected(Wire wire) {
  int ends[2];
  if (wire == Wire::kPair) {
    CheckedFd(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
    return {ends[0], ends[1]};
  }
  const Descriptor listener(CheckedFd(socket(AF_INET, SOCK_STREAM, 0), "socket"));
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(place);
  auto* const address = reinterpret_cast<sockaddr*>(&place);
  CheckedFd(bind(listener.fd(), address, size), "bind");
  CheckedFd(listen(listener.fd(), 1), "listen");
  CheckedFd(getsockname(listener.fd(), address, &size), "getsockname");
  ends[0] = CheckedFd(socket(AF_INET, SOCK_STREAM, 0), "socket");
  CheckedFd(connect(ends[0], address, size), "connect");
  ends[1] = CheckedFd(accept(listener.fd(), nullptr, nullptr), "accept");
  return {ends[0], ends[1]};
}

std::vector<std::unique_ptr<Mesh>> Meshes(int ranks, Wire wire, size_t frame_bytes) {
  const auto count = static_cast<size_t>(ranks);
  std::vector<std::vector<int>> sockets(count, std::vector<int>(count, -1));
  for (size_t a = 0; a < count; ++a)
    for (size_t b = 0; b < a; ++b) std::tie(sockets[a][b], sockets[b][a]) = Connected(wire);
  std::vector<std::unique_ptr<Mesh>> meshes;
  for (int r = 0; r < ranks; ++r)
    meshes.push_back(std::make_unique<Mesh>(r, sockets[static_cast<size_t>(r)], frame_bytes));
  return meshes;
}

void CloseAll(std::vector<std::unique_ptr<Mesh>>& meshes) {
  std::vector<std::thread> threads;
  for (auto& mesh : meshes) threads.emplace_back([&mesh] { mesh->Close(kLong); });
  for (std::thread& thread : threads) thread.join();
}

std::vector<Over> Await(Mesh& mesh, size_t count) {
  std::vector<Over> over;
  while (over.size() < count) {
    const auto some = mesh.Completed(kLong);
    if (some.empty()) {
      ADD_FAILURE() << over.size() << " of " << count << " operations are over";
      break;
    }
    over.insert(over.end(), some.begin(), some.end());
  }
  return over;
}

void Begin(Mesh& mesh, Kind kind, uint64_t number, std::vector<float>& values, int64_t position) {
  const Tensor tensor = TensorOf(values);
  mesh.Begin(kind, number, {&tensor, 1}, Dtype::kFloat32, false, position);
}

void Peer::Send(std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ASSERT_GT(sent, 0);
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
}

void Peer::SendHeader(Kind kind, uint64_t number, uint64_t total, uint64_t offset, uint64_t length,
                      uint64_t whole) const {
  Header header{};
  header.kind = kind;
  header.operation = number;
  header.whole_bytes = whole > 0 ? whole : total * static_cast<uint64_t>(ranks_);
  header.total_bytes = total;
  header.offset_bytes = offset;
  header.length_bytes = length;
  Send(Pack(header));
}

void Peer::SendPart(Kind kind, uint64_t number, std::span<const float> values,
                    uint64_t whole) const {
  SendHeader(kind, number, values.size_bytes(), 0, values.size_bytes(), whole);
  Send(std::as_bytes(values));
}

void Peer::AwaitTaken() const {
  while (Unacknowledged(socket_.fd()) > 0) std::this_thread::yield();
}

bool Peer::ReadAll(std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = recv(socket_.fd(), out.data(), out.size(), 0);
    if (got <= 0) return false;
    out = out.subspan(static_cast<size_t>(got));
  }
  return true;
}

std::optional<Received> Peer::Read() const {
  HeaderBytes bytes;
  if (!ReadAll(bytes)) return std::nullopt;
  const auto header = Unpack(bytes);
  if (!header) {
    ADD_FAILURE() << "no frame";
    return std::nullopt;
  }
  Received received{*header, std::vector<std::byte>(header->length_bytes)};
  if (!ReadAll(received.body)) return std::nullopt;
  return received;
}

Alone::Alone(int rank, int ranks) : peers(static_cast<size_t>(ranks)) {
  std::vector<int> sockets(static_cast<size_t>(ranks), -1);
  for (int r = 0; r < ranks; ++r) {
    if (r == rank) continue;
    const auto [own, other] = Connected(Wire::kPair);
    const int little = 1;  // the kernel has a least
    setsockopt(own, SOL_SOCKET, SO_SNDBUF, &little, sizeof(little));
    sockets[static_cast<size_t>(r)] = own;
    peers[static_cast<size_t>(r)].emplace(other, ranks);
  }
  mesh = std::make_unique<Mesh>(rank, sockets, kFrameBytes);
}

}  // namespace byteprophet::exchange
