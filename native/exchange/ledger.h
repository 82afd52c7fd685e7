// Which operations are in flight, and which are over: what the mesh's two threads tell the caller.
//
// Both threads hold an operation from its start on; it is over when both have let it go. An
// operation and the one that follows from it (shares.h) are over together. Any thread may call
// anything. The mutex is held for a look into a map and nothing is called under it.
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

#include "exchange/shares.h"

namespace byteprophet::exchange {

// An operation's number, and why it could not be completed, if it could not.
using Over = std::pair<uint64_t, std::optional<std::string>>;

class Ledger {
 public:
  // An operation, with what follows. Throws std::invalid_argument if it is in flight already, or if
  // nothing can be started any more.
  void Add(const Operation& operation);

  // All of this rank's part is here.
  void Came(const Operation& operation, int rank);

  // The sum is here, and other ranks' parts of it may still be sent. Reported like what is over.
  void Summed(const Operation& operation);

  // One of the two threads will not touch its memory any more. The first error stays. True if that
  // was the last one, and true of what is not in flight.
  bool LetGo(const Operation& operation, const std::string& error = {});

  // Those that are over, each once, and sums that are told, in the order in which they ended. Waits
  // for one if there is none, but not once the ledger is closed.
  std::vector<Over> Take(std::chrono::nanoseconds timeout);

  // Whose part has not come, of what comes first; nobody's where the operation is not in flight.
  std::vector<int> Missing(uint64_t over) const;

  // From now on nothing is added.
  void Refuse();

  // Nobody holds anything any more: what is in flight ends with this error.
  void Close(const std::string& error);

 private:
  // An operation's number, and the ranks whose parts of it have not come.
  using Awaited = std::pair<uint64_t, std::vector<int>>;

  struct InFlight {
    std::vector<Awaited> awaited;  // of the operation, and of what follows
    int holders = 0;
    std::optional<std::string> error;
  };

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, InFlight> in_flight_;  // by Operation::over
  std::vector<Over> over_;
  bool refuses_ = false, closed_ = false;
};

}  // namespace byteprophet::exchange
