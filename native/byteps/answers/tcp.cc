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
  // Linux 4.9 and later fill in the delivery rate.
  constexpr size_t kNeeded = offsetof(tcp_info, tcpi_delivery_rate) + sizeof(__u64);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || size < kNeeded ||
      ioctl(fd, SIOCOUTQ, &queued) != 0 || queued < 0)
    return std::nullopt;
  return TcpReading{
      .acked_bytes = info.tcpi_bytes_acked,
      .queued_bytes = static_cast<uint64_t>(queued),
      .bytes_per_ns = static_cast<double>(info.tcpi_delivery_rate) / 1e9,
      .round_trip_ns = int64_t{info.tcpi_min_rtt} * 1000,
  };
}

}  // namespace byteprophet
