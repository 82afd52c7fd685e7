// Sums and gathers between the ranks of a job, each with one stream socket to every other.
//
// Threads: the caller's, any number; one that sends (outbox.h), one that receives and sums
// (inbox.h). None of the two needs anything of the caller's, Python's lock least of all.
//
// Locks: the mailboxes' (one for both), the ledger's, one for each meter. They guard lists, are
// held for a few instructions, and while one is held no other is taken and nothing waits: so there
// is no order to keep, and no deadlock. The two threads wait in epoll_wait and nowhere else. They
// tell each other what has failed through the mailboxes, so that each holds or lets go of an
// operation's memory by itself; the ledger says that it is over when both have let it go. closing_,
// which only Close() takes, is held while the threads end.
//
// Ends: Close() tells the outbox, which returns by the deadline whatever the others do, then the
// inbox, which returns at once. Nothing of a tensor is touched after it. A destructor is a Close()
// of a tenth of a second. Sockets are closed after both threads have ended, so no number of one is
// reused under them.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "exchange/inbox.h"
#include "exchange/ledger.h"
#include "exchange/mailbox.h"
#include "exchange/meter.h"
#include "exchange/outbox.h"
#include "exchange/shares.h"
#include "exchange/sockets.h"

namespace byteprophet::exchange {

constexpr std::chrono::milliseconds kVanishedAfter{15'000};

class Mesh {
 public:
  // sockets[r] is connected to rank r; `rank`'s own place is -1. They belong to the mesh from the
  // call on, also if it throws: std::invalid_argument for what does not fit, std::system_error.
  // `vanished_after`: as in exchange::Prepare.
  Mesh(int rank, const std::vector<int>& sockets, size_t frame_bytes,
       std::chrono::milliseconds vanished_after = kVanishedAfter);
  ~Mesh() { Close(std::chrono::milliseconds(100)); }
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  // A gather that follows from a reduce.
  struct Then {
    uint64_t number;
    int64_t position;
    bool tells_sum = false;
  };

  // Starts an operation: kReduce replaces this rank's share by the sum of all ranks', kGather every
  // other rank's share by what that rank has there. `weights` are the owners' (shares.h), the same
  // on all ranks; none: equal ones. The tensors stay alive and are left alone until it is over, or
  // what follows: then that is over, and the reduce is not reported but for `tells_sum`, without an
  // error, when its sum is here. If it fails, what they hold is not defined.
  // Throws std::invalid_argument, and then nothing has happened.
  void Begin(Kind kind, uint64_t number, std::span<const Tensor> tensors, Dtype dtype, bool average,
             int64_t position, std::span<const uint64_t> weights = {},
             std::optional<Then> then = std::nullopt);

  std::vector<Over> Completed(std::chrono::nanoseconds timeout) { return ledger_.Take(timeout); }
  std::vector<int> Missing(uint64_t number) const { return ledger_.Missing(number); }
  Traffic sent() const { return sent_.Read(); }
  Traffic received() const { return received_.Read(); }

  // Sends what is queued, for so long at most, and leaves. What is not over then has failed.
  void Close(std::chrono::nanoseconds timeout);

  // In a child made by fork, which has none of the threads: closes its copies of the sockets, and
  // leaves the connections as they are. Nothing else may be called there, the destructor least of
  // all. Takes no lock: another thread may have held any at the fork.
  void CloseInChild() { sockets_.clear(); }

 private:
  void Prepare(size_t frame_bytes, std::chrono::milliseconds vanished_after) const;

  const int rank_, ranks_;
  std::vector<Descriptor> sockets_;  // of the two threads; callers don't look at it
  Ledger ledger_;
  Meter sent_, received_;
  std::mutex orders_;
  Mailbox to_outbox_{orders_}, to_inbox_{orders_};
  Outbox outbox_;
  Inbox inbox_;
  std::mutex closing_;
  std::thread sending_, receiving_;
};

}  // namespace byteprophet::exchange
