// Tasks, and where their keys go, for tests without servers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "byteps/common/global.h"
#include "native/plugin/stage.h"

namespace byteprophet {

inline constexpr uint64_t kServers = 3;  // DMLC_NUM_SERVER has to say so, too

// What EncodeDefaultKey would do if it knew the servers. REQUIRES: no other thread uses BytePS.
inline void PlaceKey(uint64_t key) {
  byteps::common::PSKV place = {};
  place.keys.push_back(key + (key ^ key >> 16) % kServers * (~uint64_t{0} / kServers));
  place.lens.push_back(0);
  byteps::common::BytePSGlobal::ps_kv_[key] = place;
}

// What GoogleTest accepts as the name of a test for this policy.
inline std::string TestName(std::string policy) {
  std::replace(policy.begin(), policy.end(), '-', '_');
  return policy;
}

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
