// p3 (Jayarajan et al., "Priority-based Parameter Propagation", MLSys 2019): thin slices in strict
// priority, and a fixed, small number of them outstanding per server, so that an urgent slice never
// waits for more than that. docs/policies.md says where the numbers come from.
#pragma once

#include <array>

#include "prophet/policy/queued.h"
#include "prophet/settings.h"

namespace prophet {

class P3Policy final : public QueuedPolicy {
 public:
  static constexpr std::string_view kName = "p3";
  static constexpr auto kSettings = std::to_array<SettingSpec>({
      {"partition_bytes", 196608, 1, kMaxPartitionBytes},
      {"outstanding_messages", 8, 1, kMaxMessages},
  });

  explicit P3Policy(const Settings& settings);
  std::string_view name() const override { return kName; }

 protected:
  void Configure(const Settings& settings) override;
  bool MaySend(const Item& head, const ServerLoad& load, TimeNs now) override;

 private:
  size_t outstanding_messages_ = 0;
};

}  // namespace prophet
