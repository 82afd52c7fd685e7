// What a thread of the mesh is told, by the caller or by the other thread.
//
// Both mailboxes of a mesh have one mutex, held only to add to a list or to take it. So an
// operation is started in both at once, and what one thread says about it comes after its start in
// the other's mailbox. Nothing is called while it is held.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "exchange/shares.h"
#include "exchange/sockets.h"

namespace byteprophet::exchange {

using Time = std::chrono::steady_clock::time_point;

struct Start {
  std::shared_ptr<const Operation> operation;
};

// It cannot be completed: let go of its memory. Of one that is over already there is nothing to do.
struct Cancel {
  uint64_t operation;
  std::string why;
};

// A gather is complete here: what is left to be sent of it should not hold its memory for long.
struct Gathered {
  uint64_t operation;
};

// The connection with this rank is of no use any more.
struct LinkLost {
  int rank;
  std::string why;
};

// The mesh is closed: end, in the time that is left.
struct Finish {
  Time deadline;
};

using Order = std::variant<Start, Cancel, Gathered, LinkLost, Finish>;

class Mailbox {
 public:
  explicit Mailbox(std::mutex& mutex) : mutex_(mutex) {}

  void Post(Order order) {
    const std::lock_guard lock(mutex_);
    Add(std::move(order));
  }

  static void PostToBoth(Mailbox& one, Mailbox& other, const Order& order) {
    const std::lock_guard lock(one.mutex_);
    one.Add(order);
    other.Add(order);
  }

  // All of it, in order.
  std::vector<Order> Take() {
    const std::lock_guard lock(mutex_);
    eventfd_t ignored;
    eventfd_read(event_.fd(), &ignored);
    return std::exchange(orders_, {});
  }

  // Readable while something is in it.
  int fd() const { return event_.fd(); }

 private:
  void Add(Order order) {
    orders_.push_back(std::move(order));
    eventfd_write(event_.fd(), 1);
  }

  std::mutex& mutex_;
  Descriptor event_{CheckedFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")};
  std::vector<Order> orders_;
};

}  // namespace byteprophet::exchange
