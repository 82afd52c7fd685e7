// Flows of connections over shared links: rates, and when what is under way will have passed.
//
// A connection has at most one phase under way: a cost on its first link, or bytes on all links of
// its route at once. Rates are max-min fair in whole bits per second, rounded down: of all links
// the one whose even share is smallest (of several the first) fixes its flows' rates, then the
// same for the others. A phase ends at the first whole nanosecond at which its work is done. A link
// that is not limited constrains no bytes; costs on it share its time evenly.
//
// A connection may have a weight on a link: at rate r it takes weight times r of the link, as where
// its route crosses the link twice, or where only a part of its bytes does. What is even is the
// rate, not what is taken. A connection that is slowed keeps its share of links but needs longer.
//
// A link may have a burst: what it has saved while idle passes it at once. Flows that begin at one
// time share it as they share rates: evenly, and what one cannot use is the others'. These bytes
// are a phase of their own, on the other limited links of the route only.
//
// Rates are worked out once per time at which anything has changed (Settle), and only for the flows
// that the change can concern: those joined to it by links that they share. Little is worked out
// where flows share one link only or have theirs to themselves, nothing where a flow takes the
// place of one that ended on its connection at the same time and is limited by the same links. No
// allocation per flow once lists have grown.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "prophet/item.h"

namespace prophet::fluid {

inline constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();
// Work is counted in bits times nanoseconds per second: at r bits per second, r of it are done per
// ns.
inline constexpr uint64_t kWorkPerByte = 8'000'000'000;
// Of a limited link: with these no share of a link is 0.
inline constexpr int64_t kMinBandwidthBps = 8'000;
inline constexpr int64_t kMaxBandwidthBps = int64_t{1} << 40;
// A weight of one. Links are shared in these parts of bits per second, which 64 bits can hold.
inline constexpr int32_t kWhole = 1 << 20;
inline constexpr int32_t kMaxWeight = 1 << 30;

class Links {
 public:
  // Rates of the links; 0: not limited. `burst_bytes`: of each link, or empty.
  explicit Links(std::span<const int64_t> link_bps, std::span<const int64_t> burst_bytes = {});
  // Of the next connection, which are numbered from 0: links, each once, and the weight on each, in
  // parts of kWhole (empty: one on all). Before anything begins. On links with bursts all weights
  // are one. A cost shares the first link by weights, too: at twice the weight it takes twice as
  // long.
  void AddConnection(std::span<const int32_t> route, std::span<const int32_t> weights = {});

  // Whether a limited link is on the way; else bytes take no time.
  bool Limits(size_t connection) const { return connections_[connection].limited; }
  // Whether any link has a burst.
  bool bursts() const { return bursts_; }
  // A flow that begins: its bytes, and of them those that links' bursts have for it.
  struct Beginning {
    size_t connection;
    int64_t bytes;
    int64_t burst_bytes = 0;
  };
  // Takes from the links' bursts what flows that begin at one time get of them.
  void TakeBursts(std::span<Beginning> flows, TimeNs now);
  // Whether a link without a burst limits the bytes of a burst; else they take no time.
  bool LimitsBurst(size_t connection) const { return connections_[connection].burst_limited; }
  // Begin a phase; all need more than 0, StartBytes a connection that is limited, StartBurst one of
  // which bursts are, too.
  void StartCost(size_t connection, TimeNs cost_ns, TimeNs now);
  void StartBytes(size_t connection, int64_t bytes, TimeNs now);
  void StartBurst(size_t connection, int64_t bytes, TimeNs now);

  // From now on until it is called again, work takes kWhole + `slowdown` parts of kWhole as long.
  void SetSlowdown(size_t connection, int32_t slowdown, TimeNs now);

  // To be called before time goes on.
  void Settle(TimeNs now) {
    if (!over_.empty()) Leave(now);
    if (!touched_.empty()) ShareTouched(now);
  }
  // When the next phase ends, as of the last Settle; kNever if none is under way.
  TimeNs next_ns() const { return ends_.empty() ? kNever : ends_.front().time; }
  // Its connection; of several that of the smallest number.
  size_t next_connection() const { return ends_.front().connection; }
  // Ends that phase. Its connection.
  size_t Take();

  // As of the last Settle; 0: no phase.
  int64_t rate_bps(size_t connection) const {
    const Connection& of = connections_[connection];
    return of.phase_end == of.first_slot ? 0 : of.rate;
  }
  TimeNs busy_ns(size_t link) const { return links_[link].busy_ns; }

 private:
  __extension__ typedef unsigned __int128 Work;  // bits times nanoseconds per second

  static constexpr uint32_t kNotSharing = ~uint32_t{0};
  static constexpr int64_t kStale = -1;

  enum class Phase : uint8_t { kCost, kBytes, kBurst };

  // One connection on one link; slots of a route follow each other.
  struct Slot {
    uint32_t link = 0;
    uint32_t connection = 0;
    uint32_t position = 0;  // in the link's `sharing`; kNotSharing where it does not limit
    int32_t weight = kWhole;
  };
  struct Connection {
    uint32_t first_slot = 0;
    uint32_t route_end = 0;  // slots
    uint32_t phase_end = 0;  // slots of the phase; first_slot: none
    uint32_t limits = 0;     // links that the phase shares
    bool limited = false;
    bool by_first = false;       // its first link limits it, and no other does
    bool burst_limited = false;  // a link without a burst limits it
    Phase phase = Phase::kBytes;
    bool over = false;  // the phase has ended since the last Settle, and no other has begun
    int64_t rate = 0;   // its share
    int64_t speed = 0;  // at which its work is done
    int32_t slowdown = 0;
    Work work = 0;  // left at `settled`
    TimeNs settled = 0;
    uint32_t in_ends = 0;   // position
    uint32_t gathered = 0;  // the last sharing that looked at it
    uint32_t fixed = 0;     // the last sharing that gave it its rate
  };
  struct Link {
    int64_t rate = 0;
    uint32_t users = 0;     // phases under way
    uint32_t gathered = 0;  // as a connection's
    bool touched = false;
    std::vector<uint32_t> sharing;  // slots of phases that it limits
    int64_t weight = 0;             // of all these together
    int64_t whole = 0;              // its rate by that
    TimeNs busy_since = 0;
    TimeNs busy_ns = 0;
    // What may pass at once: `most`, and as it was at `saved_at`; it grows while nobody uses it.
    Work most = 0;
    Work saved = 0;
    TimeNs saved_at = 0;
    // While bursts are taken: bytes that are left, and flows that may still get some.
    int64_t burst_left = 0;
    int64_t burst_open = 0;
    // While rates are worked out.
    int64_t left = 0;
    int64_t open = 0;  // the weight of flows without a rate
    int64_t even = 0;  // left / open
  };
  // A link, and a share that is not more than its even one.
  struct Share {
    int64_t even = 0;
    uint32_t link = 0;
    friend auto operator<=>(const Share&, const Share&) = default;
  };
  struct End {
    TimeNs time = 0;
    uint32_t connection = 0;
    friend auto operator<=>(const End&, const End&) = default;
  };

  int64_t RateOf(const Link& link) const { return link.rate > 0 ? link.rate : kMaxBandwidthBps; }
  int64_t PartsOf(const Link& link) const { return RateOf(link) * kWhole; }

  static Work Saved(const Link& link, TimeNs now);
  // The links of a connection's route that have a burst.
  template <typename Do>
  void ForBursts(size_t connection, const Do& act);
  // Whether the connection's phase uses a link that it covers.
  static bool Uses(const Connection& connection, const Link& link) {
    return connection.phase != Phase::kBurst || link.most == 0;
  }
  void Start(size_t connection, Phase phase, Work work, TimeNs now);
  void Enter(Connection& connection, Phase phase, TimeNs now);
  void GoOn(Connection& connection, Phase phase, TimeNs now);
  void Leave(Connection& connection, TimeNs now);
  void Leave(TimeNs now);
  void Use(Link& link, TimeNs now) {
    if (link.users == 0) {
      link.busy_since = now;
      if (link.most > 0) link.saved = Saved(link, now);
    }
    ++link.users;
  }
  void Unuse(Link& link, TimeNs now) {
    if (--link.users > 0) return;
    link.busy_ns += now - link.busy_since;
    link.saved_at = now;
  }
  void Touch(uint32_t link);
  void ShareTouched(TimeNs now);
  bool ShareByItself(const Link& link, TimeNs now);
  bool Alone(const Connection& connection, int64_t& rate) const;
  void Gather(uint32_t link);
  void Fill(TimeNs now);
  void SetRate(Connection& connection, int64_t rate, TimeNs now);
  void SetSpeed(Connection& connection, TimeNs now);
  void SetEnd(const Connection& connection);
  // The heap of ends.
  void Place(size_t at, const End& end);
  void Lift(size_t at, End end);
  void Sink(size_t at, End end);

  std::vector<Slot> slots_;
  std::vector<Connection> connections_;
  std::vector<Link> links_;
  bool bursts_ = false;
  std::vector<uint32_t> over_;       // connections, some of which may be in use again
  std::vector<uint32_t> touched_;    // links whose flows are others than at the last Settle
  std::vector<uint32_t> component_;  // links whose flows get new rates
  std::vector<Share> shares_;        // a heap of them, the smallest first
  std::vector<size_t> open_;         // flows that may get more of bursts
  uint32_t round_ = 0;
  std::vector<End> ends_;
};

}  // namespace prophet::fluid
