// Data links: plain TCP connections between a worker and its servers, for gradients.
//
// Everything else of a job stays with ps-lite's ZeroMQ: who takes part, barriers, heartbeats, and
// the messages of those between whom there is no link. A link is two sockets (hello.h) that the
// worker connects, when the scheduler role has told it of the server (offer.h), to a port that the
// server listens on beside its own. A link that cannot be had costs nothing but speed.
//
// Threads. One, from Listen() or the first Connect() to Stop(), receives from all sockets, and
// sends what did not go at once (connection.h). Connect(), Has(), Send(): any other. The mutex
// guards who is connected; it is held for a look into a map, and nothing is called under it but
// what is innermost. Strangers, which have not introduced themselves yet, belong to the thread
// alone.
//
// Ends. A socket that breaks takes its link along: what is sent over it from then on is dropped, as
// nothing that a worker or a server has lost can be made up for. If the peer has closed a socket,
// what it sent over the other one still comes: the link ends with the last one. Whoever watches the
// job says why (heartbeat.h). A link over which a server has received nothing is forgotten: the
// worker may not have got its welcome in time and use ZeroMQ. Stop() waits for what is queued as
// long as it is told, and drops the rest.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "connection.h"
#include "hello.h"
#include "native/exchange/sockets.h"
#include "offer.h"
#include "sink.h"

namespace byteprophet::van {

class Links {
 public:
  using Milliseconds = std::chrono::milliseconds;

  // How long a stranger, or a server that is connected to, may take, and how many strangers there
  // may be. Once a server has not answered, the next ones get the shorter time: a firewall between
  // hosts mostly keeps all of them away, and the job waits meanwhile.
  static constexpr Milliseconds kPatience{10'000};
  static constexpr Milliseconds kLessPatience{500};
  static constexpr size_t kMostStrangers = 256;

  enum class Result { kSent, kNoLink, kOver };

  // `sink` outlives it. A link whose other end does not answer ends after `vanished_after`; 0:
  // never. Idle links are probed, which also keeps firewalls from forgetting them.
  explicit Links(Sink& sink, Milliseconds patience = kPatience,
                 Milliseconds vanished_after = Milliseconds(0));
  ~Links() { Stop(Milliseconds(0)); }
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  // Of a server: listens on `address`, on any port. Throws std::system_error or std::runtime_error.
  Offer Listen(const std::string& address);

  // Of worker `own`: links it with server `peer`, within the patience. Returns why there is no
  // link, or nothing.
  std::string Connect(int peer, int own, const std::string& address, const Offer& offer);

  // Whether there is a link, over or not.
  bool Has(int peer) const;

  Result Send(int peer, Lane lane, Outgoing message);

  // For good. Waits until what is queued has left, for at most `linger`.
  void Stop(Milliseconds linger);

 private:
  using Clock = std::chrono::steady_clock;

  struct Link {
    std::array<std::shared_ptr<Connection>, kLanes> lanes;
    bool is_over = false;

    bool complete() const { return lanes[kValues] && lanes[kNotices]; }
  };

  struct Stranger {
    exchange::Descriptor socket;
    Hello hello;
    size_t got = 0;
    Clock::time_point until;
  };

  exchange::Descriptor Introduce(const std::string& address, uint16_t port, const Hello& hello,
                                 Clock::time_point until) const;
  void Prepare(int socket) const;
  void Start();
  void Run();
  void Accept();
  // False: it is a stranger no more.
  bool Hear(Stranger& stranger);
  bool Welcome(Stranger& stranger);
  void Serve(int fd, uint32_t events);
  // Whether a socket of the link with `peer` has not been closed yet.
  bool IsOpen(int peer) const;
  void Close(const std::shared_ptr<Connection>& connection);
  void Add(int peer, Lane lane, exchange::Descriptor socket);
  bool AreDrained() const;
  int TimeoutMs() const;
  void Watch(int fd);

  Sink& sink_;
  const Milliseconds patience_;
  const Milliseconds vanished_after_;
  bool hurries_ = false;  // of the thread that connects
  const exchange::Descriptor epoll_;
  const exchange::Descriptor wake_;
  exchange::Descriptor listener_;
  Word word_{};
  std::thread thread_;
  std::atomic<bool> stopping_{false};

  std::map<int, Stranger> strangers_;  // by socket; of the thread

  mutable std::mutex mutex_;  // guards what follows
  std::unordered_map<int, Link> links_;
  std::unordered_map<int, std::shared_ptr<Connection>> connections_;  // by socket
};

}  // namespace byteprophet::van
