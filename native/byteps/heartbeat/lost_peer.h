// What a process knows of the loss of another role of its job: set once, by the heartbeats, and
// asked for by Python.
#pragma once

#include <string>

namespace byteprophet {

void SetLostPeer(const std::string& line);

}  // namespace byteprophet

// The line that ends this job, or null if nothing was lost within `timeout_ms`. Any thread may call
// it. The name is one that BytePS' libraries export.
extern "C" const char* byteps_lost_peer(int timeout_ms);
