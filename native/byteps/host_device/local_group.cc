#include "local_group.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>
#include <stdexcept>

namespace byteprophet {
namespace {

using Clock = SharedCell::Clock;

// Two of them per rank stay in a second-level cache.
constexpr size_t kBufferBytes = 256 * 1024;
constexpr size_t kCacheLine = 64;
// How often a wait looks whether the awaited rank still lives.
constexpr std::chrono::milliseconds kLookAround{500};

// What a rank takes a step for; compared between ranks.
struct Label {
  uint32_t kind;
  uint32_t type;
  uint64_t count;
  int64_t root;
  uint64_t first;
  bool operator==(const Label&) const = default;
};

std::string Text(const Label& label) {
  constexpr std::array kNames = {"reduce", "broadcast", "reduce-scatter", "all-gather"};
  std::ostringstream text;
  const auto& types = exchange::kDtypes;
  text << (label.kind < kNames.size() ? kNames[label.kind] : "unknown") << " of " << label.count
       << " " << (label.type < types.size() ? types[label.type].name : "unknown") << ", root "
       << label.root << ", element " << label.first;
  return text.str();
}

// Tells this process from others, also from one of the same number in another PID namespace.
uint64_t ThisProcess() {
  static const uint64_t random = [] {
    uint32_t value = 0;
    return getrandom(&value, sizeof(value), 0) == sizeof(value) ? value : 0;
  }();
  return random << 32 | static_cast<uint32_t>(getpid());
}

std::unique_ptr<SharedSegment> Open(const std::string& name, size_t size_bytes) {
  try {
    return std::make_unique<SharedSegment>(name, size_bytes);
  } catch (const std::runtime_error& error) {
    throw LocalGroupError(std::string("local ranks cannot share memory: ") + error.what());
  }
}

}  // namespace

// Zero bytes are the state before anybody came.
struct LocalGroup::RankState {
  SharedCell joined;  // 1: the rank has the segment mapped and holds its life lock
  SharedCell posted;
  SharedCell consumed;
  std::atomic<uint32_t> claimed;  // by the first who says to be this rank
  std::atomic<uint32_t> left;     // 1: it has gone in good order
  std::atomic<uint64_t> process;
  std::array<Label, 2> labels;  // of the step in each buffer; written before it is posted
};

struct LocalGroup::Header {
  std::atomic<int32_t> size;    // 0: not known yet
  std::atomic<int32_t> broken;  // 0, or 1 + the first rank that gave up
  std::array<RankState, kMostRanks> ranks;
};

LocalGroup::LocalGroup(const std::string& name, int rank, int size,
                       std::chrono::nanoseconds timeout)
    : rank_(rank),
      size_(size),
      timeout_(timeout),
      segment_(
          Open(name, sizeof(Header) + kCacheLine + 2 * kBufferBytes * static_cast<size_t>(size))),
      header_(static_cast<Header*>(segment_->data())) {
  try {
    Meet();
  } catch (...) {
    segment_->Unlink();
    throw;
  }
  // Every rank does: the one that was to do it alone could be killed before.
  segment_->Unlink();
}

LocalGroup::~LocalGroup() { header_->ranks[rank_].left = 1; }

void LocalGroup::Meet() {
  RankState& own = header_->ranks[rank_];
  int32_t known = 0;
  if (!header_->size.compare_exchange_strong(known, size_) && known != size_) {
    GiveUp("local rank " + std::to_string(rank_) + " counts " + std::to_string(size_) +
           " local ranks, another counts " + std::to_string(known));
  }
  if (own.claimed.exchange(1) != 0 || !segment_->ClaimLife(rank_))
    GiveUp("two processes say that they are local rank " + std::to_string(rank_));
  own.process = ThisProcess();
  own.joined.Publish(1);
  for (int peer = 0; peer < size_; ++peer) Await(header_->ranks[peer].joined, 1, peer, "come");
}

void LocalGroup::Run(const std::vector<Collective>& batch) {
  ThrowIfBroken();
  const std::vector<Step> steps = StepsOf(batch);
  const uint32_t first = steps_done_ + 1;
  for (size_t i = 0; i <= steps.size(); ++i) {
    const uint32_t number = first + static_cast<uint32_t>(i);
    if (i < steps.size()) Write(steps[i], number);
    if (i > 0) Read(steps[i - 1], number - 1);
  }
  steps_done_ += static_cast<uint32_t>(steps.size());
}

std::vector<LocalGroup::Step> LocalGroup::StepsOf(const std::vector<Collective>& batch) const {
  std::vector<Step> steps;
  for (const Collective& call : batch) {
    const int pieces = call.kind == Collective::Kind::kReduceScatter ? size_ : 1;
    const size_t most = PieceElements(call.type, pieces);
    for (size_t first = 0; first < call.count; first += most)
      steps.push_back({&call, first, std::min(most, call.count - first)});
  }
  return steps;
}

size_t LocalGroup::PieceElements(ElementType type, int pieces) const {
  return kBufferBytes / static_cast<size_t>(pieces) / kCacheLine * kCacheLine / SizeBytes(type);
}

std::byte* LocalGroup::BufferOf(int owner, uint32_t number) const {
  constexpr size_t kFirst = (sizeof(Header) + kCacheLine - 1) / kCacheLine * kCacheLine;
  const size_t index = 2 * static_cast<size_t>(owner) + number % 2;
  return reinterpret_cast<std::byte*>(header_) + kFirst + index * kBufferBytes;
}

void LocalGroup::Write(const Step& step, uint32_t number) {
  const Collective& call = *step.call;
  RankState& own = header_->ranks[rank_];
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) Await(header_->ranks[peer].consumed, number - 2, peer, "take data");
  }
  const size_t unit = SizeBytes(call.type);
  const auto* from = static_cast<const std::byte*>(call.from);
  std::byte* buffer = BufferOf(rank_, number);
  const auto copy = [&](std::byte* to, size_t first) {
    std::memcpy(to, from + first * unit, step.count * unit);
  };
  switch (call.kind) {
    case Collective::Kind::kReduce:
      if (rank_ != call.root) copy(buffer, step.first);
      break;
    case Collective::Kind::kBroadcast:
      if (rank_ == call.root) copy(buffer, step.first);
      break;
    case Collective::Kind::kReduceScatter:
      for (int peer = 0; peer < size_; ++peer) {
        const auto piece = static_cast<size_t>(peer);
        if (peer != rank_)
          copy(buffer + piece * PieceElements(call.type, size_) * unit,
               piece * call.count + step.first);
      }
      break;
    case Collective::Kind::kAllGather:
      copy(buffer, step.first);
      break;
  }
  own.labels[number % 2] = {static_cast<uint32_t>(call.kind), static_cast<uint32_t>(call.type),
                            call.count, call.root, step.first};
  own.posted.Publish(number);
}

void LocalGroup::Read(const Step& step, uint32_t number) {
  const Collective& call = *step.call;
  const size_t unit = SizeBytes(call.type);
  const auto* from = static_cast<const std::byte*>(call.from) + step.first * unit;
  auto* to = static_cast<std::byte*>(call.to) + step.first * unit;
  const auto own_rank = static_cast<size_t>(rank_);
  const auto copy_own = [&](std::byte* target) {
    if (target != from) std::memmove(target, from, step.count * unit);
  };
  switch (call.kind) {
    case Collective::Kind::kReduce:
      if (rank_ == call.root) Sum(step, number, step.first, to);
      break;
    case Collective::Kind::kBroadcast:
      if (rank_ == call.root) {
        copy_own(to);
      } else {
        std::memcpy(to, Posted(call.root, step, number), step.count * unit);
      }
      break;
    case Collective::Kind::kReduceScatter:
      Sum(step, number, own_rank * call.count + step.first, to);
      break;
    case Collective::Kind::kAllGather:
      for (int peer = 0; peer < size_; ++peer) {
        std::byte* part = to + static_cast<size_t>(peer) * call.count * unit;
        if (peer == rank_) {
          copy_own(part);
        } else {
          std::memcpy(part, Posted(peer, step, number), step.count * unit);
        }
      }
      break;
  }
  // Also where this rank needs nothing: each looks at its neighbour's label, so that all are equal.
  Posted((rank_ + 1) % size_, step, number);
  header_->ranks[rank_].consumed.Publish(number);
}

void LocalGroup::Sum(const Step& step, uint32_t number, size_t own_first, std::byte* to) {
  const Collective& call = *step.call;
  const size_t unit = SizeBytes(call.type);
  const size_t piece = call.kind == Collective::Kind::kReduceScatter
                           ? static_cast<size_t>(rank_) * PieceElements(call.type, size_) * unit
                           : 0;
  std::array<const void*, kMostRanks> addends;
  for (int peer = 0; peer < size_; ++peer) {
    addends[static_cast<size_t>(peer)] =
        peer == rank_ ? static_cast<const std::byte*>(call.from) + own_first * unit
                      : Posted(peer, step, number) + piece;
  }
  SumOverRanks(to, addends.data(), size_, step.count, call.type);
}

const std::byte* LocalGroup::Posted(int peer, const Step& step, uint32_t number) {
  RankState& state = header_->ranks[peer];
  Await(state.posted, number, peer, "bring data");
  const Collective& call = *step.call;
  const Label own{static_cast<uint32_t>(call.kind), static_cast<uint32_t>(call.type), call.count,
                  call.root, step.first};
  if (const Label& theirs = state.labels[number % 2]; !(theirs == own)) {
    GiveUp("local ranks do different things: rank " + std::to_string(rank_) + " " + Text(own) +
           ", rank " + std::to_string(peer) + " " + Text(theirs));
  }
  return BufferOf(peer, number);
}

void LocalGroup::Await(SharedCell& cell, uint32_t target, int peer, const char* what) {
  if (cell.Reached(target)) return;
  const Clock::time_point deadline = Clock::now() + timeout_;
  while (!cell.SleepUntil(target, std::min(deadline, Clock::now() + kLookAround))) {
    ThrowIfBroken();
    // What it did before it went counts: hence the second look.
    if (!IsAlive(peer) && !cell.Reached(target))
      GiveUp("local rank " + std::to_string(peer) + " has ended; waited for it to " + what);
    if (Clock::now() >= deadline) {
      std::ostringstream why;
      why << "waited " << std::chrono::duration<double>(timeout_).count() << " s for local rank "
          << peer << " to " << what << " (BYTEPROPHET_TIMEOUT_S sets the limit)";
      GiveUp(why.str());
    }
  }
}

bool LocalGroup::IsAlive(int peer) const {
  const RankState& state = header_->ranks[peer];
  if (!state.joined.Reached(1)) return true;  // it may still come
  if (state.left != 0) return false;
  return state.process == ThisProcess() || segment_->IsAliveElsewhere(peer);
}

void LocalGroup::GiveUp(const std::string& why) {
  int32_t nobody = 0;
  header_->broken.compare_exchange_strong(nobody, 1 + rank_);
  for (RankState& state : header_->ranks) {
    for (SharedCell* cell : {&state.joined, &state.posted, &state.consumed}) cell->WakeAll();
  }
  throw LocalGroupError(why);
}

void LocalGroup::ThrowIfBroken() const {
  if (const int32_t broken = header_->broken; broken != 0)
    throw LocalGroupError("local rank " + std::to_string(broken - 1) +
                          " has given up; its own message says why");
}

}  // namespace byteprophet
