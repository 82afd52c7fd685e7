// Tasks for tests that drive a queue alone.
#ifndef TESTS_PLUGIN_TASKS_H_
#define TESTS_PLUGIN_TASKS_H_

#include <cstdint>
#include <memory>

#include "native/plugin/stage.h"

namespace byteprophet {

inline Task MakeTask(uint64_t key, int priority = 0, int version = 0, unsigned int len = 100) {
  auto task = std::make_shared<byteps::common::TensorTableEntry>();
  task->tensor_name = "tensor";
  task->key = key;
  task->priority = priority;
  task->version = version;
  task->len = len;
  return task;
}

}  // namespace byteprophet

#endif  // TESTS_PLUGIN_TASKS_H_
