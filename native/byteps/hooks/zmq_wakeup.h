// Lets a thread sleep until a ZeroMQ socket that others also use has something to receive.
//
// ZMQ_FD becomes readable on an edge, and *any* operation on the socket, a send by another thread
// too, may consume that edge. So whoever operates on a socket calls Touched() afterwards; it sees
// from ZMQ_EVENTS whether a message came in meanwhile and, if so, wakes the receiver through an
// eventfd.
//
// Threads: sockets are guarded by the van's one mutex. Add() and Touched() REQUIRE it to be held;
// Wait() REQUIRES it not to be held (it touches descriptors only). A wake-up cannot be lost: the
// receiver finds the socket empty under the mutex, and everything that can change this afterwards
// writes one of the two descriptors it then polls.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace ps {

class ZmqWakeup {
 public:
  ZmqWakeup() = default;
  ZmqWakeup(const ZmqWakeup&) = delete;
  ZmqWakeup& operator=(const ZmqWakeup&) = delete;
  ~ZmqWakeup() {
    for (auto& [socket, wait] : waits_) close(wait.event_fd);
  }

  // Registers `socket` for Wait(). A socket that took a closed one's address takes its place.
  void Add(void* socket) {
    Descriptors wait;
    size_t size = sizeof(wait.zmq_fd);
    zmq_getsockopt(socket, ZMQ_FD, &wait.zmq_fd, &size);
    wait.event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    std::lock_guard<std::mutex> lock(mutex_);
    auto [it, inserted] = waits_.emplace(socket, wait);
    if (!inserted) {
      close(it->second.event_fd);
      it->second = wait;
    }
  }

  void Touched(void* socket) {
    int events = 0;
    size_t size = sizeof(events);
    if (zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size) != 0 || (events & ZMQ_POLLIN) == 0)
      return;
    const Descriptors wait = Find(socket);
    if (wait.event_fd < 0) return;
    const uint64_t one = 1;
    (void)!write(wait.event_fd, &one, sizeof(one));
  }

  void Wait(void* socket) {
    const Descriptors wait = Find(socket);
    pollfd descriptors[2] = {{wait.zmq_fd, POLLIN, 0}, {wait.event_fd, POLLIN, 0}};
    // The bound only serves shutdown, which sets a flag without writing a descriptor.
    poll(descriptors, 2, 50);
    uint64_t count;
    (void)!read(wait.event_fd, &count, sizeof(count));
  }

 private:
  struct Descriptors {
    int zmq_fd = -1;
    int event_fd = -1;
  };

  Descriptors Find(void* socket) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = waits_.find(socket);
    return it == waits_.end() ? Descriptors{} : it->second;
  }

  std::mutex mutex_;  // guards waits_; taken last, nothing is called while it is held
  std::unordered_map<void*, Descriptors> waits_;
};

}  // namespace ps
