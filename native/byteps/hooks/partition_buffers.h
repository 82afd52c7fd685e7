// Whether the pushes of a round belong together, and the server's two buffers of a key whose length
// has changed: what patch 0034 calls in servers.
//
// A round of a key is one push of every worker. Its first push says the length and the type of all;
// one that differs would be summed beyond the end of the shorter one, or as numbers that it does
// not have. The server then ends with a line that names both workers.
//
// If the length of the first push is another one than before, the spare buffer, in which the round
// is summed, is made anew. That is as safe as writing to it (docs/byteps-build.md, 0007): who
// pushes has received the round before, so all have pushed that one, so all have received the one
// whose sum the spare buffer still has. The other buffer follows one round later. So no worker
// waits for another, and no message is needed.
//
// REQUIRES: the server's handle_mu_ is held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "native/byteps/leaving.h"

namespace byteprophet {

// A push of one partition of a tensor.
struct Push {
  uint64_t key;
  int worker;
  size_t len;
  int dtype;  // a byteps::common::DataType

  std::string what() const {
    constexpr const char* kTypes[] = {"float32", "float64", "float16", "uint8",
                                      "int32",   "int8",    "int64"};
    constexpr int kKnown = sizeof(kTypes) / sizeof(*kTypes);
    return std::to_string(len) + " bytes of " +
           (dtype >= 0 && dtype < kKnown ? kTypes[dtype] : "type " + std::to_string(dtype));
  }
};

[[noreturn]] inline void RefusePush(const Push& push, const std::string& others) {
  Say("error",
      "workers partition the same tensor differently, or its size or type differs: worker-" +
          std::to_string(push.worker) + " pushes " + push.what() + " for partition " +
          std::to_string(push.key & 0xffff) + " of the tensor that was declared as number " +
          std::to_string(push.key >> 16) + ", counted from 0, but " + others);
  EndAtOnce(1, "");
}

// `stored` is what the server keeps of the push's key, `first_of_round` whether it is the first
// push of its round. Without a compressor, a push has the length of its key.
template <typename Stored>
void CheckPush(Stored* stored, const Push& push, bool first_of_round, bool compressed) {
  if (first_of_round) {
    stored->round_worker = push.worker;
    stored->round_len = push.len;
    stored->round_dtype = push.dtype;
    if (!compressed && push.len != stored->len)
      RefusePush(push, "it has " + std::to_string(stored->len) + " bytes");
  } else if (push.dtype != stored->round_dtype || (!compressed && push.len != stored->round_len)) {
    const Push first{push.key, stored->round_worker, stored->round_len, stored->round_dtype};
    RefusePush(push, "worker-" + std::to_string(first.worker) + " pushed " + first.what());
  }
}

// `stored` has buffers `tensor` of `len` bytes and `spare` of `spare_len`; both null: the key is
// new. `allocate(buffer)` makes one of the push's length.
template <typename Stored, typename Allocate>
void FitBuffers(Stored* stored, const Push& push, bool first_of_round, Allocate allocate) {
  if (first_of_round) {
    if (stored->tensor == nullptr) {
      allocate(&stored->tensor);
      stored->len = push.len;
    }
    if (stored->spare_len != push.len) {
      std::free(stored->spare);
      allocate(&stored->spare);
    }
    stored->spare_len = stored->len;  // BytePS swaps the two next
    stored->len = push.len;
  }
  CheckPush(stored, push, first_of_round, /*compressed=*/false);
}

}  // namespace byteprophet
