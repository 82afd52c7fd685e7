// The count of local ranks that are ready for a key, defined again: a count that goes up wakes the
// stage that waits for it. Shipped, the stage polls.
//
// Runs on the thread that listens to local ranks. The table's lock is released before the stages'
// are taken, as they take it inside their own. BytePS listens only once it is initialised (patch
// 0016), so all stages are there.
#include "byteps/common/ready_table.h"

#include "byteps/common/logging.h"
#include "native/plugin/plugin.h"

namespace byteps {
namespace common {

int ReadyTable::AddReadyCount(uint64_t key) {
  int count = 0;
  {
    std::lock_guard<std::mutex> lock(_table_mutex);
    BPS_CHECK_LT(_ready_table[key], _ready_count) << _table_name << ", key " << key;
    count = ++_ready_table[key];
  }
  byteprophet::PeersChanged(this, key);
  return count;
}

}  // namespace common
}  // namespace byteps
