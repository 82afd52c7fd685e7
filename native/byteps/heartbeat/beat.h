// A heartbeat and its answer as they travel: one frame of text each, so that no message of
// ps-lite's looks like one.
//
//   byteprophet-beat <sender> <scheduler, 0 if not heard yet> <worker|server> <name>
//   byteprophet-answer <scheduler> [<line that ends the job>]
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

namespace byteprophet {

struct Beat {
  uint64_t sender = 0;     // drawn by lot by each process that joins
  uint64_t scheduler = 0;  // the same of the scheduler role that it has heard
  bool is_worker = false;
  std::string name;  // "worker-1 (10.87.0.4)"
};

struct Answer {
  uint64_t scheduler = 0;
  std::string lost;  // empty: all is well
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
  text << kBeatMark << beat.sender << ' ' << beat.scheduler << ' '
       << (beat.is_worker ? "worker " : "server ") << beat.name;
  return text.str();
}

inline std::string ToText(const Answer& answer) {
  return std::string(kAnswerMark) + std::to_string(answer.scheduler) + ' ' + answer.lost;
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
  beat.is_worker = kind == "worker";
  beat.name = Rest(in);
  return beat;
}

inline std::optional<Answer> AnswerFrom(std::string_view text) {
  if (text.substr(0, kAnswerMark.size()) != kAnswerMark) return std::nullopt;
  std::istringstream in{std::string(text.substr(kAnswerMark.size()))};
  Answer answer;
  if (!(in >> answer.scheduler)) return std::nullopt;
  answer.lost = Rest(in);
  return answer;
}

}  // namespace byteprophet
