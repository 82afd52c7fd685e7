// Tasks, and where their keys go, for tests without servers.
#pragma once

#include <gtest/gtest.h>

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

inline Task MakeTask(uint64_t key, int priority = 0, int version = 0, unsigned int len = 100) {
  auto task = std::make_shared<byteps::common::TensorTableEntry>();
  task->tensor_name = "tensor";
  task->key = key;
  task->priority = priority;
  task->version = version;
  task->len = len;
  return task;
}

// GoogleTest takes letters and digits only.
inline std::string NameOfPolicy(const testing::TestParamInfo<std::string>& tested) {
  std::string name = tested.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace byteprophet
