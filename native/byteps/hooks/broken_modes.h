// Refuses, however the server was started, the modes of BytePS' server that give wrong results.
// The launcher refuses them, too, before anything is started
// (python/byteprophet/launcher/checks.py).
#pragma once

#include <cstdlib>
#include <iostream>
#include <string_view>

namespace byteprophet {

inline void RefuseBrokenModes() {
  constexpr struct {
    const char* name;
    const char* what;
  } kModes[] = {
      {"BYTEPS_SERVER_ENABLE_SCHEDULE", "gives wrong sums"},
      {"BYTEPS_SERVER_ENGINE_BLOCKING", "fails, as the blocking server has no sum to answer from"},
      {"BYTEPS_ENABLE_ASYNC", "fails, as the asynchronous server has no sum to answer from"},
  };
  for (const auto& [name, what] : kModes) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0' || std::string_view(value) == "0") continue;
    std::cerr << "byteprophet: error: " << name << '=' << value << ": " << what << "; unset it"
              << std::endl;
    std::_Exit(2);
  }
}

}  // namespace byteprophet
