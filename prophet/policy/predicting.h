// What prophet and prophet-paper have in common: when something more urgent will become ready,
// learned from earlier iterations, and bandwidth and delay, from acknowledgements.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "prophet/policy/bandwidth.h"
#include "prophet/policy/delay.h"
#include "prophet/policy/forecast.h"
#include "prophet/policy/queued.h"

namespace prophet {

class PredictingPolicy : public QueuedPolicy {
 public:
  void OnReady(const Item& item, TimeNs now) override;
  void OnAcked(const Item& item, TimeNs now) final;
  void OnIteration(TimeNs now) override;
  Decision Next(TimeNs now) override;
  void SetReadyTimes(std::span<const ReadyTime> times) override;

 protected:
  using QueuedPolicy::QueuedPolicy;

  // `item` was sent, or has been acknowledged; the queues have taken notice of it.
  virtual void Sent(const Item& item, TimeNs now) = 0;
  virtual void Acked(const Item& item, TimeNs now) = 0;

  static constexpr double kBitsPerByteNs = 8e9;

  // 0: estimate.
  void GiveBandwidth(int64_t bandwidth_bps);

  std::optional<TimeNs> NextAbove(int32_t priority) const { return forecast_.NextAbove(priority); }
  std::vector<ReadyTime> ForecastTimes() const { return forecast_.Times(); }
  // Payload of the worker's link, and of it what goes to this server: as given, shared evenly among
  // the servers with work, or as estimated. nullopt: not known yet.
  std::optional<double> LinkBytesPerNs() const;
  std::optional<double> BytesPerNs(uint32_t server) const;
  // The shortest, lately, from sending to acknowledgement; 0 while none is known.
  TimeNs DelayNs(uint32_t server) const;
  // The longest of these, over all servers.
  TimeNs LongestDelayNs() const { return longest_delay_ns_; }

 private:
  struct Server {
    BandwidthEstimate bandwidth;
    DelayEstimate delay;
  };

  std::optional<double> given_bytes_per_ns_;
  ReadyForecast forecast_;
  BandwidthEstimate link_;
  std::unordered_map<uint32_t, Server> servers_;
  TimeNs longest_delay_ns_ = 0;                   // as of the last acknowledgement
  std::unordered_map<uint64_t, TimeNs> sent_ns_;  // of what is in flight, by key
};

}  // namespace prophet
