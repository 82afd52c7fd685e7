#include "exchange/mesh.h"

#include <pthread.h>

#include <memory>
#include <stdexcept>
#include <utility>

#include "native/blocked_signals.h"

namespace byteprophet::exchange {
namespace {

std::vector<Descriptor> Owned(const std::vector<int>& sockets) {
  std::vector<Descriptor> owned;
  owned.reserve(sockets.size());
  for (const int fd : sockets) owned.emplace_back(fd);
  return owned;
}

template <typename Box>
std::thread Thread(const char* name, Box& box) {
  const BlockedSignals blocked;
  std::thread thread([&box] { box.Run(); });
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace

Mesh::Mesh(int rank, const std::vector<int>& sockets, size_t frame_bytes,
           std::chrono::milliseconds vanished_after)
    : rank_(rank),
      ranks_(static_cast<int>(sockets.size())),
      sockets_(Owned(sockets)),
      outbox_((Prepare(frame_bytes, vanished_after), sockets_), frame_bytes, ledger_, sent_,
              to_outbox_, to_inbox_),
      inbox_(sockets_, ledger_, received_, to_inbox_, to_outbox_) {
  sending_ = Thread("mesh-send", outbox_);
  try {
    receiving_ = Thread("mesh-receive", inbox_);
  } catch (...) {
    to_outbox_.Post(Finish{});
    sending_.join();
    throw;
  }
}

void Mesh::Prepare(size_t frame_bytes, std::chrono::milliseconds vanished_after) const {
  const auto refuse = [](const std::string& why) { throw std::invalid_argument("mesh: " + why); };
  const std::string ranks = std::to_string(sockets_.size()) + " ranks";
  if (rank_ < 0 || static_cast<size_t>(rank_) >= sockets_.size())
    refuse("rank " + std::to_string(rank_) + " of " + ranks);
  if (frame_bytes < 1 || frame_bytes > kMostFrameBytes)
    refuse("frames of " + std::to_string(frame_bytes) + " bytes; 1 to " +
           std::to_string(kMostFrameBytes) + " are possible");
  for (size_t r = 0; r < sockets_.size(); ++r) {
    const bool own = static_cast<int>(r) == rank_;
    if (own != (sockets_[r].fd() < 0))
      refuse("a socket for each of " + ranks + " but rank " + std::to_string(rank_) +
             ", which has -1: " + std::to_string(sockets_[r].fd()) + " is given for rank " +
             std::to_string(r));
    if (!own) exchange::Prepare(sockets_[r].fd(), frame_bytes, vanished_after);
  }
}

void Mesh::Begin(Kind kind, uint64_t number, std::span<const Tensor> tensors, Dtype dtype,
                 bool average, int64_t position, std::span<const uint64_t> weights,
                 std::optional<Then> then) {
  const DtypeFacts& facts = FactsOf(dtype);
  const Owners owners = weights.empty() ? Owners::Equal(ranks_) : Owners(weights);
  if (owners.ranks() != static_cast<size_t>(ranks_))
    throw std::invalid_argument("mesh: " + std::to_string(owners.ranks()) +
                                " owners' weights for " + std::to_string(ranks_) + " ranks");
  if (average && !facts.has_fractions)
    throw std::invalid_argument("mesh: " + std::string(facts.name) + " has no averages");
  for (const Tensor& tensor : tensors) {
    if (tensor.elements > 0 && (tensor.data == nullptr ||
                                reinterpret_cast<uintptr_t>(tensor.data) % facts.size_bytes != 0))
      throw std::invalid_argument("mesh: a tensor is not aligned to its elements");
  }
  auto operation = std::make_shared<Operation>(Operation{.number = number,
                                                         .over = number,
                                                         .kind = kind,
                                                         .dtype = dtype,
                                                         .average = average,
                                                         .position = position,
                                                         .rank = rank_,
                                                         .whole_bytes = 0,
                                                         .shares = {},
                                                         .then = nullptr});
  for (int r = 0; r < ranks_; ++r)
    operation->shares.push_back(ShareOf(tensors, facts.size_bytes, r, owners));
  for (const Share& share : operation->shares) operation->whole_bytes += share.size_bytes;
  if (then) {
    auto gather = std::make_shared<Operation>(*operation);
    gather->number = gather->over = operation->over = then->number;
    gather->kind = Kind::kGather;
    gather->position = then->position;
    operation->tells_sum = then->tells_sum;
    operation->then = std::move(gather);
  }
  ledger_.Add(*operation);
  Mailbox::PostToBoth(to_outbox_, to_inbox_, Start{std::move(operation)});
}

void Mesh::Close(std::chrono::nanoseconds timeout) {
  const std::lock_guard lock(closing_);
  if (!sending_.joinable()) return;
  ledger_.Refuse();
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  to_outbox_.Post(Finish{deadline});
  sending_.join();
  to_inbox_.Post(Finish{deadline});
  receiving_.join();
  sockets_.clear();
  ledger_.Close("this rank has left the job");
}

}  // namespace byteprophet::exchange
