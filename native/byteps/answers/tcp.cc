#include "tcp.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstddef>

namespace byteprophet {

std::optional<TcpReading> ReadTcp(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  int queued = 0;
  // Linux 4.1 and later say what was acknowledged.
  constexpr size_t kNeeded = offsetof(tcp_info, tcpi_bytes_acked) + sizeof(__u64);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || size < kNeeded ||
      ioctl(fd, SIOCOUTQ, &queued) != 0 || queued < 0)
    return std::nullopt;
  return TcpReading{
      .acked_bytes = info.tcpi_bytes_acked,
      .queued_bytes = static_cast<uint64_t>(queued),
  };
}

}  // namespace byteprophet
