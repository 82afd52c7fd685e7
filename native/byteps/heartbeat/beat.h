// A heartbeat and its answer as they travel: one frame of text each, so that no message of
// ps-lite's looks like one.
//
//   byteprophet-beat <sender> <scheduler, 0 if not heard yet> <kind> <name>
//   byteprophet-answer <scheduler> <what> [<line>]
//
// A kind is "worker" or "server", or of a worker that has left "finished:41" or "suspended:41",
// with the number of its operations. What an answer says is "all-is-well", "lost" with the line
// that ends the job, "missing" with who has registered, while others have not, or "left:41" with
// who has left after so many operations.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include "departure.h"

namespace byteprophet {

struct Beat {
  uint64_t sender = 0;     // drawn by lot by each process that joins
  uint64_t scheduler = 0;  // the same of the scheduler role that it has heard
  bool is_worker = false;
  std::string name;  // "worker-1 (10.87.0.4)"
  std::optional<Departure> departure = std::nullopt;
};

// Who of the workers has left the job after the fewest operations.
struct WhoLeft {
  uint64_t operations = 0;
  std::string who;  // "worker-1 (10.87.0.4) has finished"
};

struct Answer {
  uint64_t scheduler = 0;
  std::string lost;     // empty: nobody is
  std::string missing;  // empty: all have registered
  std::optional<WhoLeft> left = std::nullopt;
};

constexpr std::string_view kBeatMark = "byteprophet-beat ";
constexpr std::string_view kAnswerMark = "byteprophet-answer ";

// What comes from the network ends up in messages: printable, and not without end.
inline std::string Printable(std::string text) {
  text.resize(std::min<size_t>(text.size(), 1000));
  std::replace_if(text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

inline std::string ToText(const Beat& beat) {
  std::ostringstream text;
  text << kBeatMark << beat.sender << ' ' << beat.scheduler << ' ';
  if (!beat.departure)
    text << (beat.is_worker ? "worker" : "server");
  else
    text << (beat.departure->suspends ? "suspended:" : "finished:") << beat.departure->operations;
  text << ' ' << beat.name;
  return text.str();
}

inline std::string ToText(const Answer& answer) {
  std::ostringstream text;
  text << kAnswerMark << answer.scheduler << ' ';
  if (!answer.lost.empty())
    text << "lost " << answer.lost;
  else if (!answer.missing.empty())
    text << "missing " << answer.missing;
  else if (answer.left)
    text << "left:" << answer.left->operations << ' ' << answer.left->who;
  else
    text << "all-is-well";
  return text.str();
}

// The number behind `mark`, with which `text` begins.
inline std::optional<uint64_t> NumberBehind(std::string_view mark, std::string_view text) {
  if (text.substr(0, mark.size()) != mark) return std::nullopt;
  uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data() + mark.size(), end, number);
  if (error != std::errc() || stopped != end) return std::nullopt;
  return number;
}

// The rest of the line after one space.
inline std::string Rest(std::istringstream& in) {
  std::string text;
  std::getline(in >> std::ws, text);
  return Printable(std::move(text));
}

inline std::optional<Beat> BeatFrom(std::string_view text) {
  if (text.substr(0, kBeatMark.size()) != kBeatMark) return std::nullopt;
  std::istringstream in{std::string(text.substr(kBeatMark.size()))};
  Beat beat;
  std::string kind;
  if (!(in >> beat.sender >> beat.scheduler >> kind)) return std::nullopt;
  const auto finished = NumberBehind("finished:", kind),
             suspended = NumberBehind("suspended:", kind);
  if (finished) beat.departure = Departure{*finished, false};
  if (suspended) beat.departure = Departure{*suspended, true};
  beat.is_worker = kind == "worker" || beat.departure;
  beat.name = Rest(in);
  return beat;
}

inline std::optional<Answer> AnswerFrom(std::string_view text) {
  if (text.substr(0, kAnswerMark.size()) != kAnswerMark) return std::nullopt;
  std::istringstream in{std::string(text.substr(kAnswerMark.size()))};
  Answer answer;
  std::string what;
  if (!(in >> answer.scheduler >> what)) return std::nullopt;
  const std::string line = Rest(in);
  if (what == "lost") answer.lost = line;
  if (what == "missing") answer.missing = line;
  if (const auto operations = NumberBehind("left:", what)) answer.left = WhoLeft{*operations, line};
  return answer;
}

}  // namespace byteprophet
