// What this rank receives: one thread, which alone knows all that is here, and sums.
//
// Parts of a gather are received straight into the tensors' memory. Contributions to a reduce are
// summed as far as all ranks' have come, while they are in the nearest cache. Until then, and of an
// operation that this rank has not started, bytes are kept aside, as the script may still use that
// memory. Sockets are always read, whatever becomes of the bytes, so that no rank ever waits for
// another one's script.
//
// An operation fails when a rank that it needs is gone, gives up, or means another one by the same
// number. Its memory is let go of at once; what still comes of it is thrown away.
//
// Ends: Run() waits in epoll_wait only, and returns when it is told to finish.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "exchange/buffers.h"
#include "exchange/frame.h"
#include "exchange/ledger.h"
#include "exchange/mailbox.h"
#include "exchange/meter.h"
#include "exchange/shares.h"
#include "exchange/sockets.h"

namespace byteprophet::exchange {

class Inbox {
 public:
  // `sockets`: by rank; they, and all else, outlive it.
  Inbox(std::span<const Descriptor> sockets, Ledger& ledger, Meter& meter, Mailbox& own,
        Mailbox& outbox);

  // The thread.
  void Run();

 private:
  // What comes from one rank in one operation.
  struct Part {
    Kind kind{};  // these four as the first frame says
    Dtype dtype{};
    uint64_t whole_bytes = 0;  // of all ranks
    uint64_t total_bytes = 0;  // 0: nothing has come
    uint64_t received_bytes = 0;
    Buffers::Buffer aside;    // bytes from `aside_from` on; none: they are in the tensors
    uint64_t aside_from = 0;  // all before it are summed
    Cursor cursor;            // where the next byte goes in the tensors
    std::string gave_up;      // why; empty if it did not

    // Where byte `offset` is, or goes, aside.
    std::byte* Aside(uint64_t offset) const { return aside.data() + (offset - aside_from); }
  };

  struct Incoming {
    uint64_t number;
    std::shared_ptr<const Operation> operation;  // null before it is started here
    bool failed = false;                         // what comes is thrown away
    std::vector<Part> parts;                     // by rank
    int missing = 0;                             // parts, once it is started
    Cursor to_sum;                               // of a reduce: behind what is summed
    uint64_t summed_bytes = 0;
  };

  struct Link {
    int rank, fd;
    std::string lost;  // why; empty while it is of use
    std::string hint;  // why the outbox thinks that it will end
    HeaderBytes header_bytes;
    size_t header_got = 0;
    Header header;  // of the frame in progress
    uint64_t body_left = 0;
    Incoming* incoming = nullptr;  // what it belongs to; null: text
    std::string text;

    bool Busy() const {
      return lost.empty() && (header_got > 0 || body_left > 0 || header.more != 0);
    }
  };

  void Do(const Start& start);
  void Do(const Cancel& cancel);
  void Do(const LinkLost& link_lost);
  void Do(const Gathered&) {}  // for the outbox
  void Do(const Finish&) { finished_ = true; }

  void Receive(Link& link);
  std::pair<size_t, size_t> Look(Link& link, std::span<iovec> out);
  void TakeHeader(Link& link);
  void TakeBody(Link& link, size_t bytes);
  void TakeText(Link& link);
  // Ranks end because others have ended: `why` gets the first end, too.
  void Lose(Link& link, std::string why);
  void Break(Link& link, const std::string& what);

  Incoming& IncomingOf(uint64_t number);
  Part& PartOf(Incoming& incoming, int rank) { return incoming.parts[static_cast<size_t>(rank)]; }
  // Why this rank's part cannot become what is expected; empty if it can.
  std::string Trouble(Incoming& incoming, const Link& link);
  void PartCame(Incoming& incoming, int rank);
  // Starts what follows, in both threads.
  void Complete(Incoming& incoming);
  // What of a part is kept aside at once.
  size_t AsideBytes(const Incoming& incoming, const Part& part) const;
  // Sums what all ranks' parts have.
  void SumWhatCame(Incoming& incoming);
  // `why` goes to the other ranks; whoever said it is added for this one.
  void Fail(Incoming& incoming, const std::string& why, const std::string& said_by = {});
  // Of an operation that was started here.
  void LetGo(Incoming& incoming, const std::string& error = {});
  // Forgets a failed operation once nothing of it can come any more.
  void Sweep(Incoming& incoming);

  Ledger& ledger_;
  Meter& meter_;
  Mailbox& own_;
  Mailbox& outbox_;
  Poll poll_;
  Buffers buffers_;
  std::vector<Link> links_;
  const size_t ranks_;
  std::map<uint64_t, Incoming> incoming_;  // by operation
  std::vector<std::byte> thrown_away_;
  std::vector<const std::byte*> summands_;  // by rank
  std::string first_lost_;                  // why; empty while all links are of use
  bool finished_ = false;
};

}  // namespace byteprophet::exchange
