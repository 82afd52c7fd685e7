// What the files of the plug-in offer each other and its C interface (c_api.cc).
#pragma once

#include <chrono>

#include "byteps/common/ready_table.h"

namespace byteprophet {

// A local rank has counted up in `table`: wakes who waits for that.
void PeersChanged(const byteps::common::ReadyTable* table);

// The caller is about to push the first gradient of a new iteration.
void OnIteration();

// Sleeps until push_pull operations have finished or the time is over; returns how many handles it
// wrote.
int NextDone(std::chrono::milliseconds timeout, int* handles, int capacity);

}  // namespace byteprophet
