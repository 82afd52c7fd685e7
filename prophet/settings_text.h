// Settings as text: "window_max_bytes=2097152,partition_bytes=524288", as environment variables
// carry them.
#pragma once

#include <string_view>

#include "prophet/settings.h"

namespace prophet {

// Empty text gives no settings. Throws std::invalid_argument, in one line that quotes the offending
// part, for anything but name=integer pairs separated by commas, and for a name that comes twice.
// Names are checked by Resolve.
Settings ParseSettings(std::string_view text);

}  // namespace prophet
