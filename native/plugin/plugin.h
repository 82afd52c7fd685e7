// What the files of the plug-in offer each other and its C interface (c_api.cc).
#pragma once

#include <chrono>
#include <string_view>

#include "byteps/common/ready_table.h"

namespace byteprophet {

// A local rank has counted up in `table`: wakes who waits for that.
void PeersChanged(const byteps::common::ReadyTable* table);

// The caller is about to push the first gradient of a new iteration.
void OnIteration();

// Changes settings of the policy from its next decision on; nothing where this process does not
// push. Throws std::invalid_argument, in one line, and then changes nothing.
void Reconfigure(std::string_view settings_text);

// Sleeps until push_pull operations have finished or the time is over; returns how many handles it
// wrote.
int NextDone(std::chrono::milliseconds timeout, int* handles, int capacity);

}  // namespace byteprophet
