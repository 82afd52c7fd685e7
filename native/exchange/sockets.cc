#include "exchange/sockets.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <stdexcept>
#include <system_error>

namespace byteprophet::exchange {
namespace {

constexpr size_t kMailbox = ~size_t{0};
// Probes of an idle connection. Its end comes with the first probe after the time is over.
constexpr int kProbeAfterS = 3, kProbeEveryS = 3;

int Option(int socket, int level, int name) {
  int value = 0;
  socklen_t size = sizeof(value);
  return getsockopt(socket, level, name, &value, &size) == 0 ? value : -1;
}

void SetOption(int socket, int level, int name, int value) {
  if (setsockopt(socket, level, name, &value, sizeof(value)) != 0)
    throw std::system_error(errno, std::generic_category(), "mesh: setsockopt");
}

}  // namespace

int CheckedFd(int fd, const char* what) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), what);
  return fd;
}

Poll::Poll(int mailbox_fd) { Add(mailbox_fd, EPOLLIN, kMailbox); }

void Poll::Add(int fd, uint32_t events, size_t number) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = number;
  CheckedFd(epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
}

void Poll::Remove(int fd) { epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, fd, nullptr); }

const Poll::Ready& Poll::Wait(int timeout_ms) {
  std::array<epoll_event, 64> events;
  ready_.mailbox = false;
  ready_.sockets.clear();
  const int count =
      epoll_wait(epoll_.fd(), events.data(), static_cast<int>(events.size()), timeout_ms);
  for (int i = 0; i < count; ++i) {  // none after a signal
    const size_t number = events[static_cast<size_t>(i)].data.u64;
    if (number == kMailbox) {
      ready_.mailbox = true;
    } else {
      ready_.sockets.push_back(number);
    }
  }
  return ready_;
}

void Prepare(int socket, size_t unsent_bytes, std::chrono::milliseconds vanished_after) {
  if (Option(socket, SOL_SOCKET, SO_TYPE) != SOCK_STREAM)
    throw std::invalid_argument("mesh: descriptor " + std::to_string(socket) +
                                " is no stream socket");
  fcntl(socket, F_SETFD, FD_CLOEXEC);
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
  const int domain = Option(socket, SOL_SOCKET, SO_DOMAIN);
  if (domain != AF_INET && domain != AF_INET6) return;
  SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT,
            static_cast<int>(std::min<size_t>(unsent_bytes, INT_MAX)));
  if (vanished_after <= std::chrono::milliseconds(0)) return;
  SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT,
            static_cast<int>(std::min<int64_t>(vanished_after.count(), INT_MAX)));
  SetOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, kProbeAfterS);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, kProbeEveryS);
  SetOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
}

int Unacknowledged(int socket) {
  int bytes = 0;
  return ioctl(socket, SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

std::string ErrorText(int error) {
  switch (error) {
    case ECONNRESET:
    case EPIPE:
      return "connection reset";
    case ETIMEDOUT:
      return "no answer";
    default:
      return std::generic_category().message(error);
  }
}

}  // namespace byteprophet::exchange
