#include "connection.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace byteprophet::van {
namespace {

constexpr size_t kMostPieces = 64;       // of one call
constexpr size_t kMostAtOnce = 8 << 20;  // bytes of one call
constexpr int kMostReads = 16;           // before other sockets have their turn
// That are worth waking up for. Twice as much fits into the least buffer that Linux gives a socket:
// the sender goes on while this thread wakes up.
constexpr size_t kWakeBytes = 64 << 10;
constexpr size_t kFewBytes = 32 << 10;  // not worth a call that says so

// What is left of `message` behind its first `skip` bytes; returns how many pieces.
size_t PiecesOf(const Outgoing& message, size_t skip, iovec* out) {
  const size_t packet_bytes = message.packet.size_bytes();
  size_t count = 0;
  if (skip < packet_bytes) {
    const auto* const start = reinterpret_cast<const char*>(&message.packet);
    out[count++] = {const_cast<char*>(start) + skip, packet_bytes - skip};
  }
  const size_t sent_values = std::max(skip, packet_bytes) - packet_bytes;
  if (sent_values < message.packet.head.values_bytes)
    out[count++] = {const_cast<char*>(message.values) + sent_values,
                    message.packet.head.values_bytes - sent_values};
  return count;
}

}  // namespace

bool Connection::Send(Outgoing message) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (ended_) return false;
  queue_.push_back(std::move(message));
  if (!writing_ && !waits_) Write(lock);
  return true;
}

void Connection::Flush() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (waits_ && !writing_) Write(lock);
}

// REQUIRES: `lock` holds mutex_, nobody is writing.
void Connection::Write(std::unique_lock<std::mutex>& lock) {
  std::vector<Outgoing> done;
  writing_ = true;
  while (!queue_.empty() && !ended_) {
    std::array<iovec, kMostPieces> pieces;
    size_t count = 0, bytes = 0, skip = front_sent_;
    for (const Outgoing& message : queue_) {
      if (count + 2 > pieces.size() || bytes >= kMostAtOnce) break;
      count += PiecesOf(message, skip, &pieces[count]);
      bytes += message.size_bytes() - std::exchange(skip, 0);
    }
    lock.unlock();
    msghdr call{};
    call.msg_iov = pieces.data();
    call.msg_iovlen = count;
    const ssize_t sent = sendmsg(fd(), &call, MSG_NOSIGNAL | MSG_DONTWAIT);
    const int error = errno;
    lock.lock();
    if (sent >= 0) {
      Advance(static_cast<size_t>(sent), &done);
      if (done.empty()) continue;
      lock.unlock();
      for (const Outgoing& message : done) {
        if (message.sent) message.sent();
      }
      done.clear();
      lock.lock();
    } else if (error == EAGAIN || error == EWOULDBLOCK) {
      Watch(true);
      break;
    } else if (error != EINTR) {
      error_ = error;
      ended_ = true;
      shutdown(fd(), SHUT_RDWR);  // so the links' thread sees the end, too, whatever it was
    }
  }
  writing_ = false;
  if (queue_.empty()) Watch(false);
  if (!ended_) return;
  const std::deque<Outgoing> dropped = std::exchange(queue_, {});
  front_sent_ = 0;
  Watch(false);
  lock.unlock();
}

// REQUIRES: mutex_ is held.
void Connection::Advance(size_t bytes, std::vector<Outgoing>* done) {
  front_sent_ += bytes;
  while (!queue_.empty() && front_sent_ >= queue_.front().size_bytes()) {
    front_sent_ -= queue_.front().size_bytes();
    done->push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
}

// REQUIRES: mutex_ is held.
void Connection::Watch(bool for_room) {
  if (waits_ == for_room) return;
  waits_ = for_room;
  epoll_event event{};
  event.events = for_room ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.fd = fd();
  epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, fd(), &event);  // fails where the socket is watched no more
}

bool Connection::Receive(Sink& sink) {
  for (int reads = 0; reads < kMostReads; ++reads) {
    iovec pieces[2];
    size_t count = 0, wanted = 0;
    if (values_left_ > 0) pieces[count++] = {values_at_, wanted = values_left_};
    pieces[count++] = {staged_.data() + staged_bytes_, staged_.size() - staged_bytes_};
    wanted += staged_.size() - staged_bytes_;
    const ssize_t received = readv(fd(), pieces, static_cast<int>(count));
    if (received < 0 && errno == EINTR) continue;
    if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (received < 0) error_ = errno;
    if (received == 0) is_closed_ = values_left_ == 0 && staged_bytes_ == 0 && !IsBroken();
    if (received <= 0) return false;
    const auto got = static_cast<size_t>(received);
    const size_t of_values = std::min(got, values_left_);
    if (of_values > 0) {
      values_at_ += of_values;
      values_left_ -= of_values;
      if (values_left_ == 0) Finish(sink);
    }
    staged_bytes_ += got - of_values;
    if (!Parse(sink)) {
      is_damaged_ = true;
      return false;
    }
    if (got < wanted) break;  // there was no more
  }
  SetLowWater();
  return true;
}

// A peer that closes its end leaves the other direction open. If both are over, the socket has
// broken, even if a writer has taken its error and a read finds nothing but the end.
bool Connection::IsBroken() const {
  pollfd socket{fd(), 0, 0};
  return poll(&socket, 1, 0) != 0;  // POLLERR and POLLHUP need not be asked for
}

// Takes messages from what is staged, as long as none needs more. False: there is none.
bool Connection::Parse(Sink& sink) {
  size_t begin = 0;
  while (values_left_ == 0 && staged_bytes_ - begin >= sizeof(Head)) {
    const char* const at = staged_.data() + begin;
    std::memcpy(&packet_.head, at, sizeof(Head));
    if (!IsValid(packet_.head)) return false;
    const size_t packet_bytes = packet_.size_bytes();
    if (staged_bytes_ - begin < packet_bytes) break;
    std::memcpy(packet_.small.data(), at + sizeof(Head), packet_bytes - sizeof(Head));
    begin += packet_bytes;
    values_left_ = packet_.head.values_bytes;
    if (values_left_ > 0) {
      values_ = sink.Place(peer_, packet_.head);
      const size_t here = std::min(values_left_, staged_bytes_ - begin);
      std::memcpy(values_.get(), staged_.data() + begin, here);
      begin += here;
      values_at_ = values_.get() + here;
      values_left_ -= here;
    }
    if (values_left_ == 0) Finish(sink);
  }
  staged_bytes_ -= begin;
  if (begin > 0) std::memmove(staged_.data(), staged_.data() + begin, staged_bytes_);
  return true;
}

void Connection::Finish(Sink& sink) {
  has_received_ = true;
  sink.Deliver(peer_, packet_, std::exchange(values_, nullptr));
}

void Connection::SetLowWater() {
  const int wanted =
      values_left_ < kFewBytes ? 1 : static_cast<int>(std::min(values_left_, kWakeBytes));
  if (wanted == low_water_) return;
  low_water_ = wanted;
  setsockopt(fd(), SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof(wanted));  // else it only wakes more
}

void Connection::End() {
  std::deque<Outgoing> dropped;
  std::lock_guard<std::mutex> lock(mutex_);
  ended_ = true;
  shutdown(fd(), SHUT_RDWR);
  if (writing_) return;  // the writer drops it: it may be using it
  dropped.swap(queue_);
  front_sent_ = 0;
}

bool Connection::IsDrained() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return ended_ || queue_.empty();
}

}  // namespace byteprophet::van
