// File descriptors that are closed with their owner, and the options of the mesh's sockets.
#pragma once

#include <sys/epoll.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace byteprophet::exchange {

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

// `fd`, or std::system_error if it is none; `what` was called for it.
int CheckedFd(int fd, const char* what);

// Which sockets one thread waits for, by numbers of theirs; and its mailbox.
class Poll {
 public:
  struct Ready {
    bool mailbox = false;
    std::vector<size_t> sockets;
  };

  explicit Poll(int mailbox_fd);
  void Add(int fd, uint32_t events, size_t number);
  void Remove(int fd);

  // What is ready, until the next call. Negative `timeout_ms`: without limit.
  const Ready& Wait(int timeout_ms);

 private:
  Descriptor epoll_{CheckedFd(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")};
  Ready ready_;
};

// Makes a connected stream socket ready for the mesh: nothing blocks, other programs do not
// inherit it, small frames go at once, no more than `unsent_bytes` wait in the kernel to be sent
// for the first time, and TCP ends the connection, also an idle one, up to 6 s after the other host
// has answered nothing for `vanished_after` (0: never). So it does where something is to be sent
// and the process there takes nothing for as long, because it, or all of the job, is stopped.
// Throws std::invalid_argument for what is no stream socket.
void Prepare(int socket, size_t unsent_bytes, std::chrono::milliseconds vanished_after);

// Bytes that the other side has not acknowledged; 0 where that is not known.
int Unacknowledged(int socket);

// "connection reset"
std::string ErrorText(int error);

}  // namespace byteprophet::exchange
