// The number of a declared tensor. BytePS has a method for that in its header and not in its
// library, so it is defined here: its other ways to ask declare a name they do not know, or end the
// process.
#include <mutex>
#include <string>

#include "byteps/common/global.h"
#include "native/plugin/plugin.h"

namespace byteps {
namespace common {

ps::Key BytePSGlobal::GetKeyFromName(const std::string& name) {
  std::lock_guard<std::mutex> lock(_context_mutex);
  const auto found = _name_to_cxt.find(name);
  return found == _name_to_cxt.end() ? ~ps::Key{0} : found->second.declared_key;
}

}  // namespace common
}  // namespace byteps

namespace byteprophet {

int64_t TensorNumber(const std::string& name) {
  return static_cast<int64_t>(byteps::common::BytePSGlobal::GetKeyFromName(name));
}

}  // namespace byteprophet
