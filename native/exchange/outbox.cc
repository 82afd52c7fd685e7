#include "exchange/outbox.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace byteprophet::exchange {
namespace {

constexpr size_t kMostPieces = 512;  // of one call; the kernel takes 1024
constexpr int kAcknowledgedEveryMs = 2;
// What a fast link sends meanwhile. A copy costs about a quarter of this time.
constexpr double kGraceBytesPerNs = 1.0;
constexpr std::chrono::milliseconds kLeastGrace{2};

Header HeaderOf(Kind kind, uint64_t operation, uint64_t size_bytes) {
  Header header{};
  header.kind = kind;
  header.operation = operation;
  header.total_bytes = header.length_bytes = size_bytes;
  return header;
}

}  // namespace

Outbox::Outbox(std::span<const Descriptor> sockets, size_t frame_bytes, Ledger& ledger,
               Meter& meter, Mailbox& own, Mailbox& inbox)
    : frame_bytes_(frame_bytes),
      ledger_(ledger),
      meter_(meter),
      own_(own),
      inbox_(inbox),
      poll_(own.fd()) {
  for (size_t rank = 0; rank < sockets.size(); ++rank) {
    if (sockets[rank].fd() < 0) continue;  // this rank's own place
    Link& link = links_.emplace_back();
    link.rank = static_cast<int>(rank);
    link.fd = sockets[rank].fd();
  }
}

void Outbox::Run() {
  while (!deadline_ || !Finished()) {
    const Poll::Ready& ready = poll_.Wait(TimeoutMs());
    if (ready.mailbox) {
      for (const Order& order : own_.Take())
        std::visit([this](const auto& known) { Do(known); }, order);
    }
    if (!due_.empty()) CopyDue();
    if (deadline_) SayGoodbye();
    for (const size_t number : ready.sockets) Send(links_[number]);
    for (Link& link : links_) Watch(link);
    const bool busy =
        std::any_of(links_.begin(), links_.end(), [](const Link& link) { return link.HasWork(); });
    if (busy != meter_.busy()) meter_.SetBusy(busy, WaitingBytes());
  }
  meter_.SetBusy(false);
}

uint64_t Outbox::WaitingBytes() const {
  uint64_t bytes = 0;
  for (const Link& link : links_) {
    if (link.usable()) bytes += static_cast<uint64_t>(Unacknowledged(link.fd));
  }
  return bytes;
}

void Outbox::Do(const Start& start) {
  const Operation& operation = *start.operation;
  Outgoing& outgoing = outgoing_[operation.number];
  outgoing.operation = start.operation;
  outgoing.sequence = started_++;
  for (const Link& link : links_) {
    const Share& share = operation.To(link.rank);
    if (share.size_bytes > 0) outgoing.parts[link.rank] = {Cursor(share), 0};
  }
  if (const Link* const broken = Broken(operation)) {
    const std::string why = broken->lost;
    inbox_.Post(Cancel{operation.number, why});
    GiveUp(outgoing, why, why);
    return;
  }
  for (Link& link : links_) {
    if (outgoing.parts.contains(link.rank))
      link.queue.emplace(operation.position, outgoing.sequence, operation.number);
  }
  if (outgoing.parts.empty()) LetGo(outgoing);
}

void Outbox::Do(const Cancel& cancel) {
  const auto found = outgoing_.find(cancel.operation);
  if (found == outgoing_.end()) return;
  GiveUp(found->second, cancel.why, {});
}

void Outbox::Do(const Gathered& gathered) {
  const auto found = outgoing_.find(gathered.operation);
  if (found == outgoing_.end()) return;
  const std::chrono::nanoseconds grace(
      static_cast<int64_t>(static_cast<double>(UnsentBytes(found->second)) / kGraceBytesPerNs));
  due_.emplace(
      std::chrono::steady_clock::now() + std::max<std::chrono::nanoseconds>(grace, kLeastGrace),
      gathered.operation);
}

uint64_t Outbox::UnsentBytes(const Outgoing& outgoing) const {
  uint64_t most_bytes = 0;
  for (const Link& link : links_) {
    const auto part = outgoing.parts.find(link.rank);
    if (part == outgoing.parts.end()) continue;
    uint64_t sent_bytes = part->second.framed_bytes;
    if (link.frame.outgoing == &outgoing) sent_bytes -= link.frame.body_left;
    most_bytes = std::max(most_bytes, outgoing.operation->own().size_bytes - sent_bytes);
  }
  return most_bytes;
}

void Outbox::CopyDue() {
  const Time now = std::chrono::steady_clock::now();
  while (!due_.empty() && due_.begin()->first <= now) {
    const auto found = outgoing_.find(due_.begin()->second);
    if (found != outgoing_.end()) Copy(found->second);
    due_.erase(due_.begin());
  }
}

void Outbox::Copy(Outgoing& outgoing) {
  const Operation& operation = *outgoing.operation;
  const uint64_t unsent_bytes = UnsentBytes(outgoing);
  const uint64_t first = operation.own().size_bytes - unsent_bytes;
  outgoing.copied = std::make_unique_for_overwrite<std::byte[]>(unsent_bytes);
  Cursor rest(operation.own());
  rest.Advance(first);
  rest.Read(outgoing.copied.get(), unsent_bytes);
  outgoing.copied_share = {{{outgoing.copied.get(), unsent_bytes}}, unsent_bytes};
  const auto behind = [&](uint64_t bytes) {
    Cursor cursor(outgoing.copied_share);
    cursor.Advance(bytes - first);
    return cursor;
  };
  for (Link& link : links_) {
    const auto part = outgoing.parts.find(link.rank);
    if (part == outgoing.parts.end()) continue;
    part->second.cursor = behind(part->second.framed_bytes);
    if (link.frame.outgoing == &outgoing)
      link.frame.cursor = behind(part->second.framed_bytes - link.frame.body_left);
  }
  outgoing.let_go = true;
  ledger_.LetGo(operation);
}

void Outbox::Do(const LinkLost& link_lost) {
  for (Link& link : links_) {
    if (link.rank == link_lost.rank) Lose(link, link_lost.why);
  }
}

const Outbox::Link* Outbox::Broken(const Operation& operation) const {
  for (const Link& link : links_) {
    if (!link.lost.empty() && operation.To(link.rank).size_bytes > 0) return &link;
  }
  return nullptr;
}

void Outbox::GiveUp(Outgoing& outgoing, const std::string& why, const std::string& error) {
  const Operation& operation = *outgoing.operation;
  const uint64_t number = operation.number;
  for (Link& link : links_) {
    const auto part = outgoing.parts.find(link.rank);
    if (part == outgoing.parts.end() || !link.lost.empty()) continue;
    link.queue.erase({operation.position, outgoing.sequence, number});
    Frame& frame = link.frame;
    if (frame.outgoing == &outgoing) {
      frame.own.resize(frame.body_left);
      frame.own_sent = 0;
      frame.cursor.Read(frame.own.data(), frame.own.size());
      frame.outgoing = nullptr;
    }
    if (part->second.framed_bytes == operation.To(link.rank).size_bytes) continue;
    const std::string text = why.substr(0, kMostTextBytes);
    Notify(link, HeaderOf(Kind::kAbort, number, text.size()), text);
  }
  if (!outgoing.let_go) ledger_.LetGo(operation, error);
  outgoing_.erase(number);
}

void Outbox::Lose(Link& link, const std::string& why) {
  if (!link.lost.empty()) return;
  link.lost = why;
  link.queue.clear();
  link.notices.clear();
  link.frame = Frame();
  if (link.watched) poll_.Remove(link.fd);
  link.watched = false;
  std::vector<uint64_t> broken;
  for (const auto& [number, outgoing] : outgoing_) {
    if (outgoing.parts.contains(link.rank)) broken.push_back(number);
  }
  for (const uint64_t number : broken) {
    inbox_.Post(Cancel{number, why});
    GiveUp(outgoing_.at(number), why, why);
  }
}

void Outbox::Notify(Link& link, const Header& header, const std::string& text) {
  link.notices.push_back({header, text});
}

void Outbox::Send(Link& link) {
  if (!link.usable() || (link.frame.done() && !BeginFrame(link))) return;
  Frame& frame = link.frame;
  std::array<iovec, kMostPieces> pieces;
  size_t count = 0;
  if (frame.header_left > 0)
    pieces[count++] = {frame.header.data() + kHeaderBytes - frame.header_left, frame.header_left};
  if (frame.outgoing != nullptr) {
    count += frame.cursor.Look(frame.body_left, &pieces[count], kMostPieces - count).first;
  } else if (frame.body_left > 0) {
    pieces[count++] = {frame.own.data() + frame.own_sent, frame.body_left};
  }
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = count;
  const ssize_t sent = sendmsg(link.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) return Sent(link, static_cast<size_t>(sent));
  if (errno == EAGAIN || errno == EINTR) return;
  // The inbox reads what has come before, a goodbye perhaps, and then says that the link is lost.
  link.broken = true;
  inbox_.Post(
      LinkLost{link.rank, "rank " + std::to_string(link.rank) + " is gone: " + ErrorText(errno)});
  shutdown(link.fd, SHUT_RDWR);
}

bool Outbox::BeginFrame(Link& link) {
  Frame& frame = link.frame;
  Header header;
  if (!link.notices.empty()) {
    const Notice& notice = link.notices.front();
    header = notice.header;
    const auto* const text = reinterpret_cast<const std::byte*>(notice.text.data());
    frame.own.assign(text, text + notice.text.size());
    frame.own_sent = 0;
    link.notices.pop_front();
  } else if (!link.queue.empty()) {
    Outgoing& outgoing = outgoing_.at(std::get<2>(*link.queue.begin()));
    const Operation& operation = *outgoing.operation;
    Part& part = outgoing.parts.at(link.rank);
    header = HeaderOf(operation.kind, operation.number, operation.To(link.rank).size_bytes);
    header.dtype = operation.dtype;
    header.whole_bytes = operation.whole_bytes;
    header.offset_bytes = part.framed_bytes;
    header.length_bytes = std::min<uint64_t>(frame_bytes_, header.total_bytes - part.framed_bytes);
    frame.outgoing = &outgoing;
    frame.cursor = part.cursor;
    part.cursor.Advance(header.length_bytes);
    part.framed_bytes += header.length_bytes;
    if (part.framed_bytes == header.total_bytes) link.queue.erase(link.queue.begin());
  } else {
    return false;
  }
  header.more = !link.queue.empty() || !link.notices.empty();
  frame.header = Pack(header);
  frame.header_left = kHeaderBytes;
  frame.body_left = header.length_bytes;
  return true;
}

void Outbox::Sent(Link& link, size_t bytes) {
  Frame& frame = link.frame;
  const size_t of_header = std::min(bytes, frame.header_left);
  frame.header_left -= of_header;
  bytes -= of_header;
  frame.body_left -= bytes;
  if (frame.outgoing != nullptr) {
    frame.cursor.Advance(bytes);
  } else {
    frame.own_sent += bytes;
  }
  meter_.AddBytes(bytes);
  if (frame.done()) EndFrame(link);
}

void Outbox::EndFrame(Link& link) {
  meter_.AddFrame();
  Outgoing* const outgoing = std::exchange(link.frame.outgoing, nullptr);
  if (outgoing == nullptr) return;
  const auto part = outgoing->parts.find(link.rank);
  if (part->second.framed_bytes < outgoing->operation->To(link.rank).size_bytes) return;
  outgoing->parts.erase(part);
  if (outgoing->parts.empty()) LetGo(*outgoing);
}

void Outbox::LetGo(Outgoing& outgoing) {
  const std::shared_ptr<const Operation> operation = outgoing.operation;
  const bool let_go = outgoing.let_go;
  outgoing_.erase(operation->number);
  if (!let_go) ledger_.LetGo(*operation);
}

void Outbox::Watch(Link& link) {
  const bool wanted = link.usable() && link.HasWork();
  if (wanted == link.watched) return;
  if (wanted) {
    poll_.Add(link.fd, EPOLLOUT, static_cast<size_t>(&link - links_.data()));
  } else {
    poll_.Remove(link.fd);
  }
  link.watched = wanted;
}

void Outbox::SayGoodbye() {
  for (Link& link : links_) {
    if (!link.usable() || link.HasWork()) continue;
    if (!link.said_goodbye) {
      link.said_goodbye = true;
      Notify(link, HeaderOf(Kind::kGoodbye, 0, 0), "");
    } else if (!link.shut) {
      link.shut = true;
      shutdown(link.fd, SHUT_WR);
    }
  }
}

bool Outbox::Finished() {
  if (std::chrono::steady_clock::now() >= *deadline_) return true;
  return std::all_of(links_.begin(), links_.end(), [](const Link& link) {
    return !link.usable() || (link.shut && Unacknowledged(link.fd) == 0);
  });
}

int Outbox::TimeoutMs() const {
  if (!deadline_ && due_.empty()) return -1;
  const auto until_ms = [](Time time) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(time - std::chrono::steady_clock::now());
    return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1'000));
  };
  const int due_ms = due_.empty() ? 1'000 : until_ms(due_.begin()->first);
  if (!deadline_) return due_ms;
  const bool waiting = std::any_of(links_.begin(), links_.end(), [](const Link& link) {
    return link.usable() && !link.HasWork();
  });
  return std::min(due_ms, waiting ? kAcknowledgedEveryMs : until_ms(*deadline_));
}

}  // namespace byteprophet::exchange
