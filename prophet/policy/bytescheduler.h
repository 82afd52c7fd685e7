// bytescheduler (Peng et al., SOSP 2019): strict priority under a credit of bytes per server. A
// message goes while credit is above zero, takes its bytes from it (below zero if need be), and
// gives them back when it is acknowledged. Credit and partition size are meant to be tuned.
#pragma once

#include <array>

#include "prophet/policy/queued.h"
#include "prophet/settings.h"

namespace prophet {

class ByteSchedulerPolicy final : public QueuedPolicy {
 public:
  static constexpr std::string_view kName = "bytescheduler";
  static constexpr auto kSettings = std::to_array<SettingSpec>({
      {"partition_bytes", 262144, 1, kMaxPartitionBytes},
      {"credit_bytes", 1048576, 1, kMaxWindowBytes},
  });

  explicit ByteSchedulerPolicy(const Settings& settings);
  std::string_view name() const override { return kName; }

 protected:
  void Configure(const Settings& settings) override;
  bool MaySend(const Item& head, const ServerLoad& load, TimeNs now) override;

 private:
  uint64_t credit_bytes_ = 0;
};

}  // namespace prophet
