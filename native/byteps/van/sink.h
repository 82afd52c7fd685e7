// Who takes what comes over data links. All functions are called by the links' one thread; none may
// wait for anything that needs this thread.
#pragma once

#include <memory>
#include <string>

#include "frame.h"

namespace byteprophet::van {

class Sink {
 public:
  Sink() = default;
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;
  virtual ~Sink() = default;

  // Where the head.values_bytes (not 0) of a message go, of which the head has come.
  virtual std::shared_ptr<char> Place(int peer, const Head& head) = 0;
  // A message is here. `values`: what Place() returned; null without values.
  virtual void Deliver(int peer, const Packet& packet, std::shared_ptr<char> values) = 0;
  // A worker has connected; `fd` is the socket that carries values, until Left().
  virtual void Joined(int peer, int fd) = 0;
  // Its link has ended. `why` is for people; `has_waited`: because nothing had come from it for as
  // long as Links was told.
  virtual void Left(int peer, const std::string& why, bool has_waited) = 0;
};

}  // namespace byteprophet::van
