// How the server answers a pull: what patch 0031 calls.
#pragma once

#include "answers.h"
#include "ps/ps.h"
#include "scheduled.h"

namespace byteprophet {

// `response` refers to the server's buffer for the sum, which is not written to before the worker
// has received it (patch 0007).
inline void Answer(const ps::KVMeta& pull, const ps::KVPairs<char>& response,
                   ps::KVServer<char>* server) {
  if (!ps::PushesAreScheduled()) return server->Response(pull, response);
  Answers::Get().Add(pull.sender, RankOf(pull.cmd), response.vals.size(),
                     [pull, response, server] { server->Response(pull, response); });
}

}  // namespace byteprophet
