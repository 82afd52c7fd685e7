// prophet-paper (Zhang et al., ICPP 2021): Algorithm 1 as meant, with the smallest repairs that
// make it run; docs/policies.md lists them and says why.
//
// Per server, E = bytes / B the predicted time of a partition:
// - Backward, that is while something that outranks the head of the queue is still to come: ready
//   partitions, most urgent first, are assembled into a block while they can be sent before the
//   next such release is due. The first one always goes. A block takes no more once one of its
//   partitions is acknowledged, and the next begins when all are.
// - Forward, when nothing more urgent is to come: strict priority, one partition after the other,
//   each when the link is predicted to have sent the one before.
// - While B is not known, the paper's profiling phase: strict priority, without a window.
// Unranked items (priority 0 and up) go first and wait for nothing.
#pragma once

#include <array>
#include <unordered_map>

#include "prophet/policy/predicting.h"
#include "prophet/settings.h"

namespace prophet {

class ProphetPaperPolicy final : public PredictingPolicy {
 public:
  static constexpr std::string_view kName = "prophet-paper";
  static constexpr auto kSettings = std::to_array<SettingSpec>({
      {"partition_bytes", 1048576, 1, kMaxPartitionBytes},
      {"bandwidth_bps", 0, 0, kMaxBandwidthBps},  // 0: estimate
  });

  explicit ProphetPaperPolicy(const Settings& settings);

  Decision Next(TimeNs now) override;
  std::string_view name() const override { return kName; }

 protected:
  void Configure(const Settings& settings) override;
  bool MaySend(const Item& head, const ServerLoad& load, TimeNs now) override;
  void Sent(const Item& item, TimeNs now) override;
  void Acked(const Item& item, TimeNs now) override;

 private:
  // A driver is asked to come back within this, however slow the link is said to be.
  static constexpr TimeNs kLongestWaitNs = 1'000'000'000;
  // However slow the link is said to be: sums stay far from overflow.
  static constexpr double kLongestSendNs = 1e12;

  struct Block {
    TimeNs ends_ns = 0;     // when the link is predicted to have sent what it was given
    bool complete = false;  // takes no more
  };

  std::unordered_map<uint32_t, Block> blocks_;  // by server
  std::optional<TimeNs> ask_again_ns_;          // during Next: the earliest end that is waited for
};

}  // namespace prophet
