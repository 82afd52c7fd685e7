// fifo: BytePS' rule. Arrival order, everything at once.
#pragma once

#include <array>

#include "prophet/policy/queued.h"
#include "prophet/settings.h"

namespace prophet {

class FifoPolicy : public QueuedPolicy {
 public:
  static constexpr std::string_view kName = "fifo";
  // Smaller than BytePS' own: pulls begin sooner.
  static constexpr int64_t kPartitionBytes = 1 << 20;
  static constexpr auto kSettings =
      std::to_array<SettingSpec>({{"partition_bytes", kPartitionBytes, 1, kMaxPartitionBytes}});

  explicit FifoPolicy(const Settings& settings) : FifoPolicy(kSettings, settings) {}
  std::string_view name() const override { return kName; }

 protected:
  using QueuedPolicy::QueuedPolicy;

  void Configure(const Settings& /*settings*/) override {}
  int64_t RankOf(const Item& item) override;
  bool MaySend(const Item& head, const ServerLoad& load, TimeNs now) override;

 private:
  int64_t arrivals_ = 0;
};

}  // namespace prophet
