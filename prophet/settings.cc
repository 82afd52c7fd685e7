#include "prophet/settings.h"

#include <algorithm>
#include <stdexcept>

namespace prophet {
namespace {

std::string AcceptedNames(std::span<const SettingSpec> specs) {
  std::string names;
  for (const SettingSpec& spec : specs) {
    if (!names.empty()) names += ", ";
    names += spec.name;
  }
  return names;
}

}  // namespace

Settings Defaults(std::span<const SettingSpec> specs) {
  Settings settings;
  for (const SettingSpec& spec : specs) settings.emplace(spec.name, spec.default_value);
  return settings;
}

Settings Merged(Settings settings, const Settings& overrides) {
  for (const auto& [name, value] : overrides) settings[name] = value;
  return settings;
}

Settings Resolve(std::string_view policy, std::span<const SettingSpec> specs,
                 const Settings& overrides) {
  Settings settings = Defaults(specs);
  for (const auto& [name, value] : overrides) {
    const auto spec = std::find_if(specs.begin(), specs.end(),
                                   [&](const SettingSpec& each) { return each.name == name; });
    if (spec == specs.end()) {
      throw std::invalid_argument("scheduler " + std::string(policy) + " has no setting '" + name +
                                  "'; it accepts " + AcceptedNames(specs));
    }
    if (value < spec->minimum || value > spec->maximum) {
      throw std::invalid_argument("scheduler " + std::string(policy) + ": setting " + name + "=" +
                                  std::to_string(value) + " is out of range; it accepts " +
                                  std::to_string(spec->minimum) + " to " +
                                  std::to_string(spec->maximum));
    }
    settings[name] = value;
  }
  return settings;
}

}  // namespace prophet
