// Which operations are in flight, and which are over: what the mesh's two threads tell the caller.
//
// Both threads hold an operation from its start on; it is over when both have let it go. Any thread
// may call anything. The mutex is held for a look into a map and nothing is called under it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace byteprophet::exchange {

// An operation's number, and why it could not be completed, if it could not.
using Over = std::pair<uint64_t, std::optional<std::string>>;

class Ledger {
 public:
  // Parts of these ranks are needed. Throws std::invalid_argument if it is in flight already, or if
  // nothing can be started any more.
  void Add(uint64_t operation, std::vector<int> awaited);

  // All of this rank's part is here.
  void Came(uint64_t operation, int rank);

  // One of the two threads will not touch its memory any more. The first error stays.
  void LetGo(uint64_t operation, const std::string& error = {});

  // Those that are over, each once, in the order in which they ended. Waits for one if there is
  // none, but not once the ledger is closed.
  std::vector<Over> Take(std::chrono::nanoseconds timeout);

  // Whose part has not come; nobody's where the operation is not in flight.
  std::vector<int> Missing(uint64_t operation) const;

  // From now on nothing is added.
  void Refuse();

  // Nobody holds anything any more: what is in flight ends with this error.
  void Close(const std::string& error);

 private:
  struct InFlight {
    std::vector<int> awaited;
    int holders = 2;
    std::optional<std::string> error;
  };

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, InFlight> in_flight_;
  std::vector<Over> over_;
  bool refuses_ = false, closed_ = false;
};

}  // namespace byteprophet::exchange
