// What the policies have in common: ordered queues, and one question about the head of each.
// A policy says how items rank and whether the head of a server's queue may go now.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "prophet/policy.h"
#include "prophet/policy/queues.h"

namespace prophet {

class QueuedPolicy : public Policy {
 public:
  void OnReady(const Item& item, TimeNs now) override;
  void OnAcked(const Item& item, TimeNs now) override;
  void OnIteration(TimeNs now) override;
  Decision Next(TimeNs now) override;
  void Reconfigure(const Settings& overrides) final;
  const Settings& settings() const final { return settings_; }
  size_t pending() const override { return queues_.pending(); }

 protected:
  // `settings`: complete and within `specs`.
  QueuedPolicy(std::span<const SettingSpec> specs, const Settings& settings)
      : specs_(specs), settings_(settings) {}

  // Takes over complete settings that are in range; also what a constructor does with its own.
  // Throws std::invalid_argument, and then changes nothing, where they contradict each other.
  virtual void Configure(const Settings& settings) = 0;

  // Smaller goes first. The default is strict priority.
  virtual int64_t RankOf(const Item& item);
  // Whether `head`, the first of its server's queue, may join the `load` already in flight.
  // Must hold for an empty load (liveness).
  virtual bool MaySend(const Item& head, const ServerLoad& load, TimeNs now) = 0;

  std::optional<Item> Retire(uint64_t key) { return queues_.Ack(key); }
  const Queues& queues() const { return queues_; }

 private:
  std::span<const SettingSpec> specs_;
  Settings settings_;
  Queues queues_;
};

}  // namespace prophet
