// While it lives, the calling thread gets no signals, nor do threads that it starts, for good.
//
// Signals are for the threads of the script and of Python, which know what to do with them.
#pragma once

#include <csignal>

namespace byteprophet {

class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace byteprophet
