// Heartbeats between the scheduler role and every worker and server: a role that dies, is stopped
// or is cut off ends the job everywhere, with one line that names it.
//
// A worker or server sends a beat every second and the scheduler answers each. The scheduler draws
// the verdict (silence.h), prints it, hands it out with its answers, and ends last. Who gets a
// verdict, or draws one about the scheduler itself, prints it, makes it known through
// byteps_lost_peer(), and ends a little later with exit status 1.
//
// A worker that has ended its part of the job, and waits for the others, says so in its beats, and
// how many push_pull operations it took part in; the answers pass it on. What others have begun
// beyond fails with a line that names it (push_pulls.h), and nobody is ended for it.
//
// A worker whose data link has ended while all live ends with a line of its own (broken_link.h).
//
// Beats do not go through ps-lite's van, but over a connection of their own to the port where the
// scheduler role listens anyway: so they need no other way through a firewall, they start before
// anybody has registered, no queue of data is in front of them, and a van whose one mutex is held
// by a sender that is blocked for good stops neither a beat nor a verdict. Only the scheduler
// receives them in its van, which has no data to carry.
//
// Threads: each role has one of its own, from Start() to Stop(). A worker's or server's owns its
// socket and all it knows. The scheduler's shares its list with the van's receive thread, which
// calls IsBeat() and Connected(), under a mutex; nothing is called while that is held.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace byteprophet {

class Listener;
class Roll;

class Heartbeat {
 public:
  Heartbeat();
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // This process, which listens on `address`, joins the job of the scheduler role at
  // `scheduler`:`port`. Reads the environment; a wrong value there ends the process with exit
  // status 2.
  void Start(const std::string& address, const std::string& scheduler, int port);

  // Nobody is watched any more, and nothing is sent. Does not wait for the network.
  void Stop();

  // ps-lite connects this process, node `own`, with node `other`. It does so with others than the
  // scheduler role once all have registered. A server that was given no name gets one from its
  // number.
  void Connected(int own, int other);

  // Whether the message `data` is a beat. If so `reply` is what to answer; empty after Stop().
  bool IsBeat(const void* data, size_t size_bytes, std::string* reply);

 private:
  void RunScheduler();
  void RunOther(Listener listener, std::string endpoint, std::string address);
  std::string OwnName(const std::string& address) const;
  // Ends this process, in whatever state its other threads are, and takes its shared memory along:
  // nobody else would.
  [[noreturn]] void End() const;
  bool StoppedWithin(double time_s) const;

  std::thread thread_;
  int stop_fd_ = -1;  // an eventfd, readable after Stop()
  // Set by Start() before the thread starts, which so need not read the environment while others
  // may write it.
  bool is_worker_ = false;
  double dead_after_s_ = 0;    // 0: never
  std::string name_;           // as the launcher calls this role, or what of it is known
  std::string shared_memory_;  // what names of this worker's contain (patch 0003)
  uint64_t own_ = 0;           // drawn by lot
  std::atomic<int> node_id_{-1};

  std::mutex mutex_;            // guards what follows
  std::unique_ptr<Roll> roll_;  // of the scheduler role while it watches
  std::string lost_;
};

}  // namespace byteprophet
