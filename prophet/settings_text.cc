#include "prophet/settings_text.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <string>

namespace prophet {

Settings ParseSettings(std::string_view text) {
  Settings settings;
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), pair.size() + 1));
    const size_t equals = pair.find('=');
    int64_t value = 0;
    bool valid = equals != std::string_view::npos && equals > 0;
    if (valid) {
      const std::string_view number = pair.substr(equals + 1);
      const auto [end, error] =
          std::from_chars(number.data(), number.data() + number.size(), value);
      valid = error == std::errc() && end == number.data() + number.size();
    }
    if (!valid)
      throw std::invalid_argument("expected name=integer, got '" + std::string(pair) + "'");
    if (!settings.emplace(pair.substr(0, equals), value).second) {
      throw std::invalid_argument("'" + std::string(pair.substr(0, equals)) + "' is given twice");
    }
  }
  return settings;
}

}  // namespace prophet
