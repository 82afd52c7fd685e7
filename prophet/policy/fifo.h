// fifo: BytePS' rule. Arrival order, everything at once: no window in bytes, and a limit in
// messages to keep the transport's queues bounded.
#pragma once

#include <array>

#include "prophet/policy/queued.h"
#include "prophet/settings.h"

namespace prophet {

class FifoPolicy final : public QueuedPolicy {
 public:
  static constexpr std::string_view kName = "fifo";
  // Smaller than BytePS' own: pulls begin sooner.
  static constexpr auto kSettings =
      std::to_array<SettingSpec>({{"partition_bytes", 1048576, 1, kMaxPartitionBytes}});
  // Just under ZeroMQ's usual high-water mark of 1000.
  static constexpr size_t kMaxMessages = 900;

  explicit FifoPolicy(const Settings& settings);
  std::string_view name() const override { return kName; }

 protected:
  void Configure(const Settings& /*settings*/) override {}
  int64_t RankOf(const Item& item) override;
  bool MaySend(const Item& head, const ServerLoad& load, TimeNs now) override;

 private:
  int64_t arrivals_ = 0;
};

}  // namespace prophet
