// How a role ends at once, in whatever state its other threads are: with one line that says why,
// and without shared memory that nobody else would remove.
#pragma once

#include <poll.h>
#include <unistd.h>

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

// What the names of BytePS' shared memory contain for a worker of the job with this root port
// (patch 0003).
inline std::string SharedMemoryOf(const std::string& root_port, const std::string& worker) {
  return "_" + root_port + "_" + worker + "_";
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
