// One socket of a data link.
//
// Sending. Whoever sends writes to the socket at once, from the memory in which the values are.
// What the kernel does not take, and what others send meanwhile, waits in a queue, from which one
// sendmsg takes as many messages as there are: the thread of the links goes on as soon as there is
// room. Nobody waits for the network, so what is queued is bounded by who sends (windows of a
// policy, tensors of a job). Order is that of the calls.
//
// Receiving. Values are read to where they will be used. What comes behind them, up to a few
// kilobytes, is read by the same call, so that a message costs one call or two. While much of a
// message is missing the kernel wakes the thread only for more than a little of it (SO_RCVLOWAT),
// and never waits for what lies behind the message.
//
// Threads. Send(): any. Receive(), Flush(), End(): the links' one. The mutex guards the queue and
// what is said of the socket; it is not held while the kernel copies. `writing_` makes one thread
// at a time the writer; the others leave their message with it. While the socket is full
// (`waits_`), the writer is the links' thread. The mutex is innermost: callbacks and the release of
// what was sent happen outside.
//
// The socket is closed with the object, and thus not before a thread that still sends has let go.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "frame.h"
#include "native/exchange/sockets.h"
#include "sink.h"

namespace byteprophet::van {

class Connection {
 public:
  // `socket` is connected, does not block, and is watched by `epoll_fd` for EPOLLIN.
  Connection(int peer, exchange::Descriptor socket, int epoll_fd)
      : peer_(peer), socket_(std::move(socket)), epoll_fd_(epoll_fd) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // False: it is over, and the message is dropped.
  bool Send(Outgoing message);
  // There is room in the socket.
  void Flush();
  // Takes what is there; false: the peer has closed its end, or sent what is no message.
  bool Receive(Sink& sink);
  // Drops what is queued. Nothing is sent or received any more.
  void End();

  // Whether the kernel has taken all that was sent.
  bool IsDrained() const;
  bool has_received() const { return has_received_; }
  bool is_damaged() const { return is_damaged_; }
  // Whether the peer has closed its end, behind a whole message. Of the links' thread.
  bool is_closed() const { return is_closed_; }
  // Of the socket, where one has ended it; else 0.
  int error() const { return error_; }
  int peer() const { return peer_; }
  int fd() const { return socket_.fd(); }

 private:
  void Write(std::unique_lock<std::mutex>& lock);
  void Advance(size_t bytes, std::vector<Outgoing>* done);
  void Watch(bool for_room);
  bool IsBroken() const;
  bool Parse(Sink& sink);
  void Finish(Sink& sink);
  void SetLowWater();

  const int peer_;
  const exchange::Descriptor socket_;
  const int epoll_fd_;

  std::atomic<int> error_{0};

  mutable std::mutex mutex_;    // guards what follows, up to ended_
  std::deque<Outgoing> queue_;  // only the writer takes from its front
  size_t front_sent_ = 0;       // bytes of the first
  bool writing_ = false;
  bool waits_ = false;  // for room: epoll tells
  bool ended_ = false;

  // Of the links' thread. While values are missing nothing is staged.
  std::array<char, 4096> staged_;
  size_t staged_bytes_ = 0;
  Packet packet_;
  std::shared_ptr<char> values_;
  char* values_at_ = nullptr;
  size_t values_left_ = 0;
  int low_water_ = 1;
  bool has_received_ = false;
  bool is_damaged_ = false;
  bool is_closed_ = false;
};

}  // namespace byteprophet::van
