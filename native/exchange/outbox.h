// What this rank sends: one thread, which alone knows all that is here.
//
// Each other rank has a socket and a queue of the operations that have bytes left for it, by
// position. Whenever the socket takes something, the frame in progress goes on; after its end the
// first operation of the queue gives the next frame. The kernel holds about a frame that it has not
// sent (sockets.h), so an urgent operation waits for two at most. Ranks are independent of each
// other: nothing blocks, and a rank that takes nothing only keeps its own queue.
//
// Bytes go from the tensors' memory to the kernel. An operation that is given up is let go of at
// once: what remains of a frame in progress is copied, and an abort follows in place of the rest.
// A gather whose result is here is not over before this rank's own share has been sent to all, and
// a slow rank's link would hold up those who wait for the result. So the rest of the share is
// copied, unless it is sent within the time that a fast link needs (kGraceBytesPerNs).
//
// Of a connection that takes nothing any more the inbox says why: it may have a goodbye yet to
// read. So there is one reason for all that fails with it.
//
// Ends: Run() waits in epoll_wait only. Once told to finish it sends what is queued, says goodbye
// to all, waits until they have acknowledged it (else closing a socket in which something unread
// lies would tear it out of their hands), and returns, at the deadline at the latest.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "exchange/ledger.h"
#include "exchange/mailbox.h"
#include "exchange/meter.h"
#include "exchange/shares.h"
#include "exchange/sockets.h"

namespace byteprophet::exchange {

class Outbox {
 public:
  // `sockets`: by rank; they, and all else, outlive it.
  Outbox(std::span<const Descriptor> sockets, size_t frame_bytes, Ledger& ledger, Meter& meter,
         Mailbox& own, Mailbox& inbox);

  // The thread.
  void Run();

 private:
  // The bytes of one operation for one rank, behind those that frames were made of.
  struct Part {
    Cursor cursor;
    uint64_t framed_bytes = 0;
  };

  struct Outgoing {
    std::shared_ptr<const Operation> operation;
    uint64_t sequence;          // in order of starts
    std::map<int, Part> parts;  // of ranks for which bytes are left, or a frame is in progress
    std::unique_ptr<std::byte[]> copied;  // of a gather: the rest of the own share
    Share copied_share;
    bool let_go = false;  // of the tensors
  };

  // A frame in progress. Its bytes are a tensor's as long as `outgoing` is set, else its own.
  struct Frame {
    HeaderBytes header;
    size_t header_left = 0;
    uint64_t body_left = 0;
    Outgoing* outgoing = nullptr;
    Cursor cursor;
    std::vector<std::byte> own;
    size_t own_sent = 0;

    bool done() const { return header_left == 0 && body_left == 0; }
  };

  struct Notice {
    Header header;
    std::string text;
  };

  using Turn = std::tuple<int64_t, uint64_t, uint64_t>;  // position, sequence, operation

  struct Link {
    int rank, fd;
    bool watched = false;  // by poll_
    bool said_goodbye = false, shut = false;
    bool broken = false;  // nothing can be sent: the inbox will say why
    std::string lost;     // why; empty before it has said so
    std::set<Turn> queue;
    std::deque<Notice> notices;  // before the queue
    Frame frame;

    bool usable() const { return !broken && lost.empty(); }
    bool HasWork() const { return !frame.done() || !queue.empty() || !notices.empty(); }
  };

  void Do(const Start& start);
  void Do(const Cancel& cancel);
  void Do(const Gathered& gathered);
  void Do(const LinkLost& link_lost);
  void Do(const Finish& finish) { deadline_ = finish.deadline; }

  // A rank to which the operation has bytes to send and cannot; none: null.
  const Link* Broken(const Operation& operation) const;
  // Lets go of an operation, with an error, and tells the ranks that wait for the rest of it why.
  void GiveUp(Outgoing& outgoing, const std::string& why, const std::string& error);
  // Bytes of the share that all ranks get, which at least one of them has not got.
  uint64_t UnsentBytes(const Outgoing& outgoing) const;
  // Copies the rest of gathers whose grace is over.
  void CopyDue();
  void Copy(Outgoing& outgoing);
  void Lose(Link& link, const std::string& why);
  void Notify(Link& link, const Header& header, const std::string& text);

  void Send(Link& link);
  bool BeginFrame(Link& link);
  void Sent(Link& link, size_t bytes);
  void EndFrame(Link& link);
  void LetGo(Outgoing& outgoing);

  void Watch(Link& link);
  void SayGoodbye();
  bool Finished();
  uint64_t WaitingBytes() const;  // what the kernel has, and links have not carried
  int TimeoutMs() const;

  const size_t frame_bytes_;
  Ledger& ledger_;
  Meter& meter_;
  Mailbox& own_;
  Mailbox& inbox_;
  Poll poll_;
  std::vector<Link> links_;
  std::map<uint64_t, Outgoing> outgoing_;  // by operation
  std::multimap<Time, uint64_t> due_;  // gathers that are complete here, by the end of the grace
  uint64_t started_ = 0;
  std::optional<Time> deadline_;
};

}  // namespace byteprophet::exchange
