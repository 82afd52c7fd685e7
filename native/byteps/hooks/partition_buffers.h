// The server's two buffers of a key whose length has changed: what patch 0034 calls in servers.
//
// A round of a key is one push of every worker. Its first push brings the length of all; the spare
// buffer, in which the round is summed, is made anew if its length is another one. That is as safe
// as writing to it (docs/byteps-build.md, 0007): who pushes has received the round before, so all
// have pushed that one, so all have received the one whose sum the spare buffer still has. The
// other buffer follows one round later. So no worker waits for another, and no message is needed.
//
// REQUIRES: the server's handle_mu_ is held.
#pragma once

#include <cstddef>
#include <cstdlib>

#include "ps/ps.h"

namespace byteprophet {

inline constexpr const char* kDiffer = "workers partition the same tensor differently";

// Of a push that is not compressed and does not say that the length has changed.
template <typename Stored>
void CheckLength(const Stored& stored, size_t len) {
  CHECK_EQ(stored.len, len) << kDiffer << ", or it has different sizes there";
}

// `stored` has buffers `tensor` of `len` bytes and `spare` of `spare_len`; both null: the key is
// new. `allocate(buffer)` makes one of `len` bytes.
template <typename Stored, typename Allocate>
void FitBuffers(Stored* stored, size_t len, bool first_of_round, Allocate allocate) {
  if (!first_of_round) {
    CHECK_EQ(stored->len, len) << kDiffer;
    return;
  }
  if (stored->tensor == nullptr) {
    allocate(&stored->tensor);
    stored->len = len;
  }
  if (stored->spare_len != len) {
    std::free(stored->spare);
    allocate(&stored->spare);
  }
  stored->spare_len = stored->len;  // BytePS swaps the two next
  stored->len = len;
}

}  // namespace byteprophet
