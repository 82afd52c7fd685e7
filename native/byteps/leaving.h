// How a role ends at once, in whatever state its other threads are: with one line that says why,
// and without shared memory that nobody else would remove.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace byteprophet {

// Says `line` on standard error. Whoever should read may be stuck himself: then the line is lost,
// but nobody waits for him.
inline void Say(const char* kind, const std::string& line) {
  constexpr size_t kAtOnce = 4000;  // less than PIPE_BUF
  const std::string text =
      (std::string("byteprophet: ") + kind + ": " + line).substr(0, kAtOnce) + "\n";
  pollfd out = {STDERR_FILENO, POLLOUT, 0};
  if (poll(&out, 1, 1000) > 0) (void)!write(STDERR_FILENO, text.data(), text.size());
}

// What the names of BytePS' shared memory contain for this worker (patch 0003). Another job on this
// host may have the same root port and worker, so the launcher adds a name that no other start has.
inline std::string SharedMemoryName() {
  std::string name = "_";
  for (const char* part : {"DMLC_PS_ROOT_PORT", "DMLC_WORKER_ID", "BYTEPROPHET_SHARED_MEMORY"}) {
    const char* value = std::getenv(part);
    name += std::string(value != nullptr ? value : "") + "_";
  }
  return name;
}

// Ends this process. `shared_memory` is of this worker, or empty.
[[noreturn]] inline void EndAtOnce(int status, const std::string& shared_memory) {
  if (!shared_memory.empty()) {
    std::error_code error;
    for (std::filesystem::directory_iterator entry("/dev/shm", error), end; !error && entry != end;
         entry.increment(error)) {
      const std::string name = entry->path().filename();
      if (name.starts_with("BytePS_") && name.find(shared_memory) != std::string::npos)
        unlink(entry->path().c_str());
    }
  }
  _exit(status);
}

}  // namespace byteprophet
