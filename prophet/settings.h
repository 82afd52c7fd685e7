// Settings of a policy: named integers with units in their names, checked whenever they are given.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace prophet {

using Settings = std::map<std::string, int64_t>;

struct SettingSpec {
  std::string_view name;
  int64_t default_value;
  int64_t minimum;
  int64_t maximum;
};

// BytePS rounds its partition size up to whole pages of all local ranks and computes with an int.
inline constexpr int64_t kMaxPartitionBytes = int64_t{1} << 30;
// Keeps sums of bytes far from overflow.
inline constexpr int64_t kMaxWindowBytes = int64_t{1} << 50;
// More than any worker has partitions under way.
inline constexpr int64_t kMaxMessages = int64_t{1} << 20;
// A petabit per second.
inline constexpr int64_t kMaxBandwidthBps = int64_t{1} << 50;

Settings Defaults(std::span<const SettingSpec> specs);

// `settings`, with the values of `overrides` where it has some.
Settings Merged(Settings settings, const Settings& overrides);

// The defaults with `overrides` applied. Throws std::invalid_argument, in one line that names the
// policy, the setting and what is accepted, for an unknown name or a value out of range.
Settings Resolve(std::string_view policy, std::span<const SettingSpec> specs,
                 const Settings& overrides);

}  // namespace prophet
