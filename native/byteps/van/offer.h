// What a server offers to the workers of its job: a port for data links, and the word by which it
// knows who was told of it.
//
// The offer travels in ps-lite's description of the server (Node::endpoint_name, which only other
// vans use) through the scheduler role, to those that it has registered. So whoever connects to the
// port and does not know the word is none of the job's.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>

namespace byteprophet::van {

constexpr size_t kWordBytes = 32;
using Word = std::array<unsigned char, kWordBytes>;

struct Offer {
  uint16_t port = 0;
  Word word{};
};

constexpr char kOfferMark[] = "bp-data1";
constexpr size_t kOfferMarkBytes = sizeof(kOfferMark) - 1;
constexpr size_t kOfferBytes = kOfferMarkBytes + sizeof(uint16_t) + kWordBytes;

// Into `text`, which has kOfferBytes or more.
inline void Write(const Offer& offer, char* text) {
  std::memcpy(text, kOfferMark, kOfferMarkBytes);
  std::memcpy(text + kOfferMarkBytes, &offer.port, sizeof(offer.port));
  std::memcpy(text + kOfferMarkBytes + sizeof(offer.port), offer.word.data(), kWordBytes);
}

// Nothing where `text` is none: its server has no port for data.
inline std::optional<Offer> ReadOffer(const char* text) {
  if (std::memcmp(text, kOfferMark, kOfferMarkBytes) != 0) return std::nullopt;
  Offer offer;
  std::memcpy(&offer.port, text + kOfferMarkBytes, sizeof(offer.port));
  std::memcpy(offer.word.data(), text + kOfferMarkBytes + sizeof(offer.port), kWordBytes);
  return offer;
}

}  // namespace byteprophet::van
