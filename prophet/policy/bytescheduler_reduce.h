// bytescheduler-reduce: BytePS' own scheduling, which the Prophet paper compared itself with under
// the name ByteScheduler. Pushes are first in, first out, all at once. What is scheduled is the
// local reduction before them, under a credit of partitions; the plug-in does that
// (native/plugin/stage.h), so here only the credit's setting is kept. It is read once, at start.
#pragma once

#include <array>

#include "prophet/policy/fifo.h"

namespace prophet {

class ByteSchedulerReducePolicy final : public FifoPolicy {
 public:
  static constexpr std::string_view kName = "bytescheduler-reduce";
  static constexpr std::string_view kCredit = "credit_partitions";
  // BytePS' own: its partition size, and its NCCL group size plus one, which is what it computes
  // before it looks at BYTEPS_SCHEDULING_CREDIT.
  static constexpr auto kSettings = std::to_array<SettingSpec>({
      {"partition_bytes", 4096000, 1, kMaxPartitionBytes},
      {kCredit, 5, 1, kMaxMessages},
  });

  explicit ByteSchedulerReducePolicy(const Settings& settings) : FifoPolicy(kSettings, settings) {}
  std::string_view name() const override { return kName; }
};

}  // namespace prophet
