// Collectives between the local ranks of one worker, over shared memory. What the host device's
// NCCL interface (nccl.h) stands on.
//
// The segment has, per rank, two buffers that only this rank writes and two counters: `posted`, the
// last step whose bytes it has written, and `consumed`, the last step whose bytes it no longer
// needs from anybody. All calls are cut into the same steps on all ranks, at most a buffer each.
// For step s a rank
//
//   writes  its part into buffer s mod 2, after every other rank has consumed step s - 2, then
//           posts s;
//   reads   what the others have posted for s, copies or sums it, then consumes s.
//
// It writes step s + 1 before it reads step s, so that ranks rarely wait for each other. Sums are
// made in the order of the ranks: the same input gives the same bits.
//
// Concurrency. One thread of each rank calls Run(); there is no lock. A rank writes its own buffers
// and counters only (and `broken`, once); posting is a release and finding a step posted an
// acquire, so the bytes of a step are seen by who reads them; consuming orders the next use of the
// buffer the same way. No deadlock: among the ranks that are furthest behind, each can do its next
// action, since writing s + 1 needs only reads of s - 1, and reading s only writes of s.
//
// Nothing waits for ever. A wait that is not over looks every half second whether the awaited rank
// still lives and whether another rank gave up; at the latest the time limit ends it. Whoever gives
// up marks the group as broken and wakes all, and Run() throws on every rank from then on. What a
// rank was told to do goes with its bytes: ranks whose calls differ give up instead of mixing them.
//
// The segment's name is gone as soon as all ranks have it mapped; from then on nothing can be left
// behind, however the processes end.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "rank_sum.h"
#include "shared_cell.h"
#include "shared_segment.h"

namespace byteprophet {

// One line: what failed, and which rank is to blame.
class LocalGroupError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The meaning of the fields is NCCL's. `count` is the number of elements that a rank receives in
// reduce-scatter and sends in all-gather; else that of the whole. `to` matters where something is
// received, `root` for reduce and broadcast.
struct Collective {
  enum class Kind : uint32_t { kReduce, kBroadcast, kReduceScatter, kAllGather };

  Kind kind;
  ElementType type;
  size_t count;
  const void* from;
  void* to;
  int root = 0;
};

class LocalGroup {
 public:
  static constexpr int kMostRanks = 64;

  // Meets `size` ranks, each in a process (in tests, a thread) of its own, at `name`. Throws
  // LocalGroupError when they have not all come within `timeout`, which every later wait has, too.
  LocalGroup(const std::string& name, int rank, int size, std::chrono::nanoseconds timeout);
  ~LocalGroup();

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Does `batch` in order and returns when the results of this rank are in place. Every rank gives
  // the same calls in the same order; no call uses what another of the same batch brings. Throws
  // LocalGroupError; the group is then of no more use.
  void Run(const std::vector<Collective>& batch);

 private:
  struct RankState;
  struct Header;
  struct Step {
    const Collective* call;
    size_t first;  // element of the call
    size_t count;  // elements of this step
  };

  void Meet();
  std::vector<Step> StepsOf(const std::vector<Collective>& batch) const;
  void Write(const Step& step, uint32_t number);
  void Read(const Step& step, uint32_t number);
  void Sum(const Step& step, uint32_t number, size_t own_first, std::byte* to);
  // What rank `peer` has written for the step, after waiting for it.
  const std::byte* Posted(int peer, const Step& step, uint32_t number);
  std::byte* BufferOf(int owner, uint32_t number) const;
  size_t PieceElements(ElementType type, int pieces) const;

  void Await(SharedCell& cell, uint32_t target, int peer, const char* what);
  bool IsAlive(int peer) const;
  [[noreturn]] void GiveUp(const std::string& why);
  void ThrowIfBroken() const;

  const int rank_;
  const int size_;
  const std::chrono::nanoseconds timeout_;
  const std::unique_ptr<SharedSegment> segment_;
  Header* const header_;
  uint32_t steps_done_ = 0;
};

}  // namespace byteprophet
