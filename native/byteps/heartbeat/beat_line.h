// A worker's or server's connection to the scheduler role, for beats and answers. Used by one
// thread.
//
// A connection that was lost without a word (a cable was out for a while) waits longer and longer
// before it tries again; so Reconnect() after some silence. It also drops what was not sent.
#pragma once

#include <zmq.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>

#include "beat.h"

namespace byteprophet {

class BeatLine {
 public:
  explicit BeatLine(std::string endpoint)
      : endpoint_(std::move(endpoint)), context_(zmq_ctx_new()) {
    Connect();
  }
  BeatLine(const BeatLine&) = delete;
  BeatLine& operator=(const BeatLine&) = delete;
  ~BeatLine() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }

  void Reconnect() {
    zmq_close(socket_);
    Connect();
  }

  void Send(const Beat& beat) {
    const std::string text = ToText(beat);
    zmq_send(socket_, text.data(), text.size(), ZMQ_DONTWAIT);
  }

  // Waits for an answer for at most `time_s`, or until `stop_fd` is readable; whether it is.
  bool Wait(double time_s, int stop_fd) {
    zmq_pollitem_t items[2] = {{socket_, 0, ZMQ_POLLIN, 0}, {nullptr, stop_fd, ZMQ_POLLIN, 0}};
    zmq_poll(items, 2, std::lround(std::max(0.0, time_s) * 1000));
    return items[1].revents != 0;
  }

  std::optional<Answer> Receive() {
    char text[2048];
    const int size = zmq_recv(socket_, text, sizeof(text), ZMQ_DONTWAIT);
    if (size < 0) return std::nullopt;
    return AnswerFrom({text, std::min(static_cast<size_t>(size), sizeof(text))});
  }

 private:
  void Connect() {
    const int off = 0;
    socket_ = zmq_socket(context_, ZMQ_DEALER);
    zmq_setsockopt(socket_, ZMQ_LINGER, &off, sizeof(off));
    zmq_connect(socket_, endpoint_.c_str());
  }

  std::string endpoint_;
  void* context_;
  void* socket_ = nullptr;
};

}  // namespace byteprophet
