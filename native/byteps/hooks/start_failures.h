// A role that cannot join its job because of what the environment says: one line that names the
// variables, and exit status 2. What ps-lite calls in place of its own checks (patch 0043).
#pragma once

#include <string>

#include "native/byteps/leaving.h"

namespace byteprophet {

[[noreturn]] inline void CannotStart(const std::string& line) {
  Say("error", line);
  EndAtOnce(2, "");
}

// `address` is "tcp://10.0.0.1:9000".
[[noreturn]] inline void CannotListen(const std::string& address, bool is_scheduler,
                                      const std::string& why) {
  CannotStart("cannot listen on " + address + ": " + why + "; see " +
              (is_scheduler ? "DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT"
                            : "DMLC_NODE_HOST, DMLC_INTERFACE and PORT"));
}

[[noreturn]] inline void CannotConnect(const std::string& address, bool is_scheduler,
                                       const std::string& why) {
  CannotStart("cannot connect to " + address + ": " + why +
              (is_scheduler ? "; see DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT" : ""));
}

// The role's own address. `interface` is DMLC_INTERFACE, or empty: any but loopback would do.
[[noreturn]] inline void NoAddress(const std::string& interface) {
  CannotStart(interface.empty()
                  ? "this host has no network interface but loopback; set DMLC_NODE_HOST to the "
                    "address that others reach it at"
                  : "DMLC_INTERFACE=" + interface + ": there is no such interface with an address");
}

}  // namespace byteprophet
