#include "prophet/registry.h"

#include <array>
#include <stdexcept>

#include "prophet/policy/bytescheduler.h"
#include "prophet/policy/bytescheduler_reduce.h"
#include "prophet/policy/fifo.h"
#include "prophet/policy/p3.h"
#include "prophet/policy/prophet.h"
#include "prophet/policy/prophet_paper.h"

namespace prophet {
namespace {

struct Entry {
  std::string_view name;
  std::span<const SettingSpec> specs;
  std::unique_ptr<Policy> (*make)(const Settings& settings);
};

template <typename T>
constexpr Entry EntryFor() {
  return {T::kName, T::kSettings, [](const Settings& settings) -> std::unique_ptr<Policy> {
            return std::make_unique<T>(settings);
          }};
}

constexpr std::array kEntries = {
    EntryFor<FifoPolicy>(),          EntryFor<P3Policy>(),
    EntryFor<ByteSchedulerPolicy>(), EntryFor<ByteSchedulerReducePolicy>(),
    EntryFor<ProphetPaperPolicy>(),  EntryFor<ProphetPolicy>(),
};

const Entry& Find(std::string_view name) {
  std::string names;
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry;
    if (!names.empty()) names += ", ";
    names += entry.name;
  }
  throw std::invalid_argument("no scheduler is called '" + std::string(name) + "'; there are " +
                              names);
}

}  // namespace

std::vector<std::string> PolicyNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) names.emplace_back(entry.name);
  return names;
}

Settings DefaultSettings(std::string_view name) { return Defaults(Find(name).specs); }

std::unique_ptr<Policy> MakePolicy(std::string_view name, const Settings& overrides) {
  const Entry& entry = Find(name);
  return entry.make(Resolve(entry.name, entry.specs, overrides));
}

}  // namespace prophet
