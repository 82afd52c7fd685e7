#include "exchange/inbox.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "exchange/sums.h"

namespace byteprophet::exchange {
namespace {

constexpr size_t kMostPieces = 512;  // of one call; the kernel takes 1024
constexpr size_t kThrownAwayAtOnce = 1 << 16;
// Of a part that is summed as it comes: what fits into the second cache together with the tensor's.
constexpr size_t kAsideAtOnce = 1 << 18;
// Sums of less are not worth a call, except at the end.
constexpr size_t kSummedAtOnce = 1 << 15;

std::string Named(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

Inbox::Inbox(std::span<const Descriptor> sockets, Ledger& ledger, Meter& meter, Mailbox& own,
             Mailbox& outbox)
    : ledger_(ledger),
      meter_(meter),
      own_(own),
      outbox_(outbox),
      poll_(own.fd()),
      ranks_(sockets.size()),
      thrown_away_(kThrownAwayAtOnce),
      summands_(ranks_) {
  for (size_t rank = 0; rank < sockets.size(); ++rank) {
    if (sockets[rank].fd() < 0) continue;  // this rank's own place
    Link& link = links_.emplace_back();
    link.rank = static_cast<int>(rank);
    link.fd = sockets[rank].fd();
    link.header = {};
    poll_.Add(link.fd, EPOLLIN, links_.size() - 1);
  }
}

void Inbox::Run() {
  while (!finished_) {
    const Poll::Ready& ready = poll_.Wait(-1);
    if (ready.mailbox) {
      for (const Order& order : own_.Take())
        std::visit([this](const auto& known) { Do(known); }, order);
    }
    for (const size_t number : ready.sockets) Receive(links_[number]);
    meter_.SetBusy(
        std::any_of(links_.begin(), links_.end(), [](const Link& link) { return link.Busy(); }));
  }
  meter_.SetBusy(false);
}

// ---- orders

void Inbox::Do(const Start& start) {
  Incoming& incoming = IncomingOf(start.operation->number);
  incoming.operation = start.operation;
  for (const Link& link : links_) {
    const std::string trouble = Trouble(incoming, link);
    if (trouble.empty()) continue;
    const bool told = !PartOf(incoming, link.rank).gave_up.empty();
    return Fail(incoming, trouble, told ? Named(link.rank) : "");
  }
  for (const Link& link : links_) {
    const Share& share = incoming.operation->From(link.rank);
    if (share.size_bytes == 0) continue;
    Part& part = PartOf(incoming, link.rank);
    if (incoming.operation->kind == Kind::kGather) {
      part.cursor = Cursor(share);
      if (part.aside) part.cursor.Write(part.aside.data(), part.received_bytes);
      part.aside.Reset();
    }
    if (part.received_bytes == share.size_bytes) {
      ledger_.Came(*incoming.operation, link.rank);
    } else {
      ++incoming.missing;
    }
  }
  if (incoming.operation->kind == Kind::kReduce) {
    incoming.to_sum = Cursor(incoming.operation->own());
    SumWhatCame(incoming);
  }
  if (incoming.missing == 0) Complete(incoming);
}

void Inbox::Do(const Cancel& cancel) {
  const auto found = incoming_.find(cancel.operation);
  if (found == incoming_.end() || found->second.failed) return;
  if (!found->second.operation) return;  // over here; frames came of what others mean by its number
  LetGo(found->second);
  Sweep(found->second);
}

void Inbox::Do(const LinkLost& link_lost) {
  for (Link& link : links_) {
    if (link.rank == link_lost.rank) link.hint = link_lost.why;
  }
}

// ---- what comes

void Inbox::Receive(Link& link) {
  if (!link.lost.empty()) return;
  std::array<iovec, kMostPieces + 1> pieces;
  auto [count, bytes] = Look(link, std::span(pieces).first(kMostPieces));
  // With the end of a frame comes the next one's header.
  if (bytes == link.body_left) {
    pieces[count++] = {link.header_bytes.data() + link.header_got, kHeaderBytes - link.header_got};
  }
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = count;
  const ssize_t received = recvmsg(link.fd, &message, MSG_DONTWAIT);
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (received <= 0) {
    const std::string end = received < 0 ? ErrorText(errno) : "connection closed";
    Lose(link, link.hint.empty() ? Named(link.rank) + " is gone: " + end : link.hint);
    return;
  }
  const auto got = static_cast<size_t>(received);
  const size_t of_body = std::min(got, bytes);
  if (of_body > 0) TakeBody(link, of_body);
  link.header_got += got - of_body;
  if (link.header_got == kHeaderBytes) TakeHeader(link);
}

// Where the next bytes of the frame in progress go: pieces and bytes.
std::pair<size_t, size_t> Inbox::Look(Link& link, std::span<iovec> out) {
  if (link.body_left == 0) return {0, 0};
  if (link.incoming == nullptr) {
    out[0] = {link.text.data() + link.text.size() - link.body_left, link.body_left};
    return {1, link.body_left};
  }
  Part& part = PartOf(*link.incoming, link.rank);
  if (link.incoming->failed) {
    out[0] = {thrown_away_.data(), std::min<uint64_t>(link.body_left, thrown_away_.size())};
    return {1, out[0].iov_len};
  }
  if (part.aside) {
    const size_t used_bytes = part.received_bytes - part.aside_from;
    const size_t room_bytes = part.aside.size_bytes() - used_bytes;
    out[0] = {part.Aside(part.received_bytes), std::min<uint64_t>(link.body_left, room_bytes)};
    return {1, out[0].iov_len};
  }
  return part.cursor.Look(link.body_left, out.data(), out.size());
}

void Inbox::TakeHeader(Link& link) {
  link.header_got = 0;
  const std::optional<Header> header = Unpack(link.header_bytes);
  if (!header) return Break(link, "sent what is no frame");
  meter_.AddFrame();
  link.header = *header;
  link.body_left = header->length_bytes;
  if (header->kind == Kind::kGoodbye) return Lose(link, Named(link.rank) + " has left the job");
  if (header->kind == Kind::kAbort) {
    link.incoming = nullptr;
    link.text.resize(header->length_bytes);
    return;
  }
  Incoming& incoming = IncomingOf(header->operation);
  Part& part = PartOf(incoming, link.rank);
  link.incoming = &incoming;
  if (!part.gave_up.empty()) return Break(link, "goes on with what it gave up");
  if (part.total_bytes > 0) {
    if (header->kind != part.kind || header->dtype != part.dtype ||
        header->total_bytes != part.total_bytes || header->whole_bytes != part.whole_bytes ||
        header->offset_bytes != part.received_bytes)
      Break(link, "sent frames that do not fit together");
    return;
  }
  if (header->offset_bytes != 0) return Break(link, "sent a frame without those before it");
  part.kind = header->kind;
  part.dtype = header->dtype;
  part.total_bytes = header->total_bytes;
  part.whole_bytes = header->whole_bytes;
  if (incoming.failed) return;
  if (incoming.operation) {
    const std::string trouble = Trouble(incoming, link);
    if (!trouble.empty()) return Fail(incoming, trouble);
    if (incoming.operation->kind == Kind::kGather) return;
  }
  part.aside = buffers_.Lend(AsideBytes(incoming, part));
  if (!part.aside)
    Break(link,
          "sends " + std::to_string(part.total_bytes) + " bytes, more than there is room for");
}

void Inbox::TakeBody(Link& link, size_t bytes) {
  link.body_left -= bytes;
  meter_.AddBytes(bytes);
  if (link.incoming == nullptr) {
    if (link.body_left == 0) TakeText(link);
    return;
  }
  Incoming& incoming = *link.incoming;
  Part& part = PartOf(incoming, link.rank);
  if (!incoming.failed && !part.aside) part.cursor.Advance(bytes);
  part.received_bytes += bytes;
  if (part.aside && incoming.operation) SumWhatCame(incoming);
  if (part.received_bytes == part.total_bytes) PartCame(incoming, link.rank);
}

void Inbox::TakeText(Link& link) {
  Incoming& incoming = IncomingOf(link.header.operation);
  PartOf(incoming, link.rank).gave_up = link.text;
  if (incoming.failed) {
    Sweep(incoming);
  } else if (incoming.operation) {
    Fail(incoming, link.text, Named(link.rank));
  }
}

void Inbox::Lose(Link& link, std::string why) {
  if (first_lost_.empty()) {
    first_lost_ = why;
  } else {
    why += " (before it: " + first_lost_ + ")";
  }
  link.lost = why;
  link.incoming = nullptr;
  poll_.Remove(link.fd);
  outbox_.Post(LinkLost{link.rank, why});
  std::vector<uint64_t> numbers;
  for (const auto& [number, incoming] : incoming_) numbers.push_back(number);
  for (const uint64_t number : numbers) {
    Incoming& incoming = incoming_.at(number);
    if (incoming.failed) {
      Sweep(incoming);
    } else if (incoming.operation && !Trouble(incoming, link).empty()) {
      Fail(incoming, why);
    }
  }
}

void Inbox::Break(Link& link, const std::string& what) {
  // The outbox hears of it first, and sees the end then.
  Lose(link, Named(link.rank) + " " + what);
  shutdown(link.fd, SHUT_RDWR);
}

// ---- operations

Inbox::Incoming& Inbox::IncomingOf(uint64_t number) {
  const auto [found, added] = incoming_.try_emplace(number);
  if (added) {
    found->second.number = number;
    found->second.parts.resize(ranks_);
  }
  return found->second;
}

std::string Inbox::Trouble(Incoming& incoming, const Link& link) {
  const Operation& operation = *incoming.operation;
  const uint64_t expected_bytes = operation.From(link.rank).size_bytes;
  const Part& part = PartOf(incoming, link.rank);
  if (!part.gave_up.empty()) return part.gave_up;
  // Shares of two sizes may be equal, or empty, so that nothing would be awaited.
  const bool other_size = part.whole_bytes != operation.whole_bytes;
  if (part.total_bytes > 0 &&
      (other_size || part.kind != operation.kind || part.dtype != operation.dtype ||
       part.total_bytes != expected_bytes)) {
    const uint64_t sent_bytes = other_size ? part.whole_bytes : part.total_bytes;
    const uint64_t own_bytes = other_size ? operation.whole_bytes : expected_bytes;
    return Named(link.rank) + " sends " + Describe(part.kind, part.dtype, sent_bytes) + ", " +
           Named(operation.rank) + " expects " +
           Describe(operation.kind, operation.dtype, own_bytes);
  }
  return part.received_bytes < expected_bytes ? link.lost : "";
}

void Inbox::PartCame(Incoming& incoming, int rank) {
  if (incoming.failed) return Sweep(incoming);
  if (!incoming.operation) return;
  ledger_.Came(*incoming.operation, rank);
  if (--incoming.missing == 0) Complete(incoming);
}

void Inbox::Complete(Incoming& incoming) {
  const std::shared_ptr<const Operation> operation = incoming.operation;
  incoming_.erase(incoming.number);
  if (operation->tells_sum) ledger_.Summed(*operation);
  const bool is_over = ledger_.LetGo(*operation);
  if (operation->kind == Kind::kGather && !is_over) outbox_.Post(Gathered{operation->number});
  if (operation->then) {
    const Start next{operation->then};
    outbox_.Post(next);  // before what this thread may say about it
    Do(next);
  }
}

size_t Inbox::AsideBytes(const Incoming& incoming, const Part& part) const {
  // With a third rank, or none here that has started, any number of bytes may have to wait.
  if (!incoming.operation || ranks_ > 2) return part.total_bytes;
  return std::min<size_t>(part.total_bytes, kAsideAtOnce);
}

void Inbox::SumWhatCame(Incoming& incoming) {
  const Operation& operation = *incoming.operation;
  const size_t element_bytes = FactsOf(operation.dtype).size_bytes;
  const uint64_t size_bytes = operation.own().size_bytes;
  uint64_t came_bytes = size_bytes;
  for (const Link& link : links_)
    came_bytes = std::min(came_bytes, PartOf(incoming, link.rank).received_bytes);
  came_bytes -= came_bytes % element_bytes;
  const uint64_t fresh_bytes = came_bytes - incoming.summed_bytes;
  if (fresh_bytes == 0 || (fresh_bytes < kSummedAtOnce && came_bytes < size_bytes)) return;
  while (incoming.summed_bytes < came_bytes) {
    iovec piece;
    incoming.to_sum.Look(came_bytes - incoming.summed_bytes, &piece, 1);
    auto* const own = static_cast<std::byte*>(piece.iov_base);
    for (size_t rank = 0; rank < ranks_; ++rank) {
      const Part& part = incoming.parts[rank];
      summands_[rank] = part.aside ? part.Aside(incoming.summed_bytes) : own;
    }
    Sum(operation.dtype, summands_, piece.iov_len / element_bytes, operation.average, own);
    incoming.to_sum.Advance(piece.iov_len);
    incoming.summed_bytes += piece.iov_len;
  }
  for (Part& part : incoming.parts) {
    // At most an element of the only other rank's is left: the same memory takes what comes next.
    if (!part.aside || part.received_bytes - incoming.summed_bytes >= element_bytes) continue;
    std::memmove(part.aside.data(), part.Aside(incoming.summed_bytes),
                 part.received_bytes - incoming.summed_bytes);
    part.aside_from = incoming.summed_bytes;
  }
}

void Inbox::Fail(Incoming& incoming, const std::string& why, const std::string& said_by) {
  outbox_.Post(Cancel{incoming.number, why});
  LetGo(incoming, said_by.empty() ? why : why + " (says " + said_by + ")");
  Sweep(incoming);
}

void Inbox::LetGo(Incoming& incoming, const std::string& error) {
  incoming.failed = true;
  for (Part& part : incoming.parts) part.aside.Reset();
  const Operation& operation = *incoming.operation;
  if (operation.then) {  // nobody will start it
    ledger_.LetGo(*operation.then, error);
    ledger_.LetGo(*operation.then, error);
  }
  ledger_.LetGo(operation, error);
}

void Inbox::Sweep(Incoming& incoming) {
  const bool over = std::all_of(links_.begin(), links_.end(), [&](const Link& link) {
    const Part& part = PartOf(incoming, link.rank);
    if (!link.lost.empty() || !part.gave_up.empty()) return true;
    return part.total_bytes > 0 ? part.received_bytes == part.total_bytes
                                : incoming.operation->From(link.rank).size_bytes == 0;
  });
  if (over) incoming_.erase(incoming.number);
}

}  // namespace byteprophet::exchange
