// What ps-lite hands to ZeroMQ or to a data link, and takes from it, for the record: what patches
// 0040 and 0052 call.
#pragma once

#include "messages.h"
#include "ps/ps.h"

namespace byteprophet {

// When the message was handed over or received; 0 while nothing is recorded.
inline int64_t MessageBegins() { return MessageRecorder::Get().Begins(); }

inline Message RowOf(const ps::Message& message, uint8_t kind, int64_t begin_ns) {
  const ps::Meta& meta = message.meta;
  const int peer = kind == Message::kSend ? meta.recver : meta.sender;
  const bool with_values = message.data.size() > 1;  // behind the keys
  return {.begin_ns = begin_ns,
          .key = meta.key,
          .size_bytes = with_values ? message.data[1].size() : 0,
          .request = static_cast<uint32_t>(meta.timestamp),
          .peer = static_cast<uint32_t>(ps::Postoffice::IDtoRank(peer)),
          .what = meta.push ? (meta.request ? Message::kPush : Message::kAcknowledgement)
                            : (meta.request ? Message::kRequest : Message::kAnswer),
          .kind = kind};
}

// Of gradients: neither ps-lite's own nor an application's.
inline bool IsRecorded(const ps::Message& message, int64_t begin_ns) {
  return begin_ns != 0 && message.meta.control.empty() && !message.meta.simple_app;
}

// `last` is the message's last part. ZeroMQ gives it up when the kernel has taken all that was in
// front of it, and it itself or, if it is small, when it is about to.
inline void NoteSend(const ps::Message& message, ps::SArray<char>* last, int64_t begin_ns) {
  if (!IsRecorded(message, begin_ns)) return;
  last->reset(last->data(), last->size(),
              [kept = *last, row = RowOf(message, Message::kSend, begin_ns)](char*) {
                MessageRecorder::Get().Ended(row);
              });
}

// The message has no parts: ZeroMQ has taken it.
inline void NoteSent(const ps::Message& message, int64_t begin_ns) {
  if (message.data.empty() && IsRecorded(message, begin_ns))
    MessageRecorder::Get().Ended(RowOf(message, Message::kSend, begin_ns));
}

inline void NoteReceived(const ps::Message& message, int64_t begin_ns) {
  if (IsRecorded(message, begin_ns))
    MessageRecorder::Get().Ended(RowOf(message, Message::kReceive, begin_ns));
}

}  // namespace byteprophet
