// What a server does with pushes and pulls, for the record: what patch 0039 calls.
#pragma once

#include "ps/ps.h"
#include "served.h"

namespace byteprophet {

inline uint32_t WorkerOf(const ps::KVMeta& request) {
  return static_cast<uint32_t>(ps::Postoffice::IDtoRank(request.sender));
}

inline void NotePush(uint64_t key, const ps::KVMeta& push, uint64_t size_bytes) {
  ServedRecorder::Get().Arrived(key, WorkerOf(push), size_bytes);
}

inline void NoteSum(uint64_t key, const ps::KVMeta& push, int64_t begin_ns) {
  ServedRecorder::Get().Summed(key, WorkerOf(push), begin_ns);
}

inline void NotePull(uint64_t key, const ps::KVMeta& pull) {
  ServedRecorder::Get().Asked(key, WorkerOf(pull));
}

inline void NoteAnswer(uint64_t key, const ps::KVMeta& pull) {
  ServedRecorder::Get().Answered(key, WorkerOf(pull));
}

}  // namespace byteprophet
