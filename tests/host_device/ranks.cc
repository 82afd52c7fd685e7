#include "ranks.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "local_group.h"

namespace byteprophet {
namespace {

std::string Outcome(int rank, const std::function<void(int)>& body) {
  try {
    body(rank);
    return "";
  } catch (const LocalGroupError& error) {
    return error.what();
  }
}

}  // namespace

std::string FreshName() {
  static std::atomic<int> count{0};
  return "byteprophet_test_" + std::to_string(getpid()) + "_" + std::to_string(++count);
}

bool IsThere(const std::string& name) { return access(("/dev/shm/" + name).c_str(), F_OK) == 0; }

std::vector<std::string> RunThreads(int size, const std::function<void(int)>& body) {
  std::vector<std::string> outcomes(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { outcomes[static_cast<size_t>(rank)] = Outcome(rank, body); });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

std::vector<std::string> RunProcesses(int size, const std::function<void(int)>& body,
                                      std::chrono::seconds limit) {
  struct Child {
    pid_t pid;
    int output;
  };
  std::vector<Child> children;
  for (int rank = 0; rank < size; ++rank) {
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) std::abort();
    const pid_t pid = fork();
    if (pid == 0) {
      const std::string outcome = Outcome(rank, body);
      const ssize_t written = write(ends[1], outcome.data(), outcome.size());
      _exit(written == static_cast<ssize_t>(outcome.size()) ? 0 : 1);
    }
    close(ends[1]);
    children.push_back({pid, ends[0]});
  }
  std::vector<std::string> outcomes;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (const Child& child : children) {
    int status = 0;
    bool hung = false;
    while (waitpid(child.pid, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) {
        hung = true;
        kill(child.pid, SIGKILL);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    std::array<char, 4096> text{};
    const ssize_t length = read(child.output, text.data(), text.size());
    close(child.output);
    if (hung) {
      outcomes.emplace_back("hung");
    } else if (WIFSIGNALED(status)) {
      outcomes.emplace_back("killed");
    } else {
      outcomes.emplace_back(text.data(), static_cast<size_t>(length < 0 ? 0 : length));
    }
  }
  return outcomes;
}

}  // namespace byteprophet
