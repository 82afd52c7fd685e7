// The policies by name. Adding one: a file pair under prophet/policy/ and a line in registry.cc.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "prophet/policy.h"
#include "prophet/settings.h"

namespace prophet {

// In a fixed order, the simplest first.
std::vector<std::string> PolicyNames();

// Both throw std::invalid_argument, in one line, for an unknown name; MakePolicy also for settings
// that the policy refuses.
Settings DefaultSettings(std::string_view name);
std::unique_ptr<Policy> MakePolicy(std::string_view name, const Settings& overrides = {});

}  // namespace prophet
