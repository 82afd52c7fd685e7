// What the kernel tells of a TCP connection.
#pragma once

#include <optional>

#include "flow.h"

namespace byteprophet {

// nullopt if `fd` is no TCP connection, or the kernel does not say.
std::optional<TcpReading> ReadTcp(int fd);

}  // namespace byteprophet
