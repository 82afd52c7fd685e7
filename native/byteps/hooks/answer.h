// How the server answers a pull: what patches 0031 and 0039 call.
#pragma once

#include <utility>

#include "answers.h"
#include "ps/ps.h"
#include "scheduled.h"
#include "serving.h"

namespace byteprophet {

// `response` refers to the server's buffer for the sum, which is not written to before the worker
// has received it (patch 0007).
inline void Answer(uint64_t key, const ps::KVMeta& pull, const ps::KVPairs<char>& response,
                   ps::KVServer<char>* server) {
  auto send = [key, pull, response, server] {
    NoteAnswer(key, pull);
    server->Response(pull, response);
  };
  if (!ps::PushesAreScheduled()) return send();
  Answers::Get().Add(pull.sender, RankOf(pull.cmd), response.vals.size(), std::move(send));
}

}  // namespace byteprophet
