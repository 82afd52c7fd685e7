// What the files of the plug-in offer each other and its C interface (c_api.cc).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "byteps/common/ready_table.h"
#include "prophet/policy.h"

namespace byteprophet {

// A local rank has counted up this key in `table`: wakes who waits for that.
void PeersChanged(const byteps::common::ReadyTable* table, uint64_t key);

// The caller is about to push the first gradient of a new iteration. Adopts a plan staged for it.
void OnIteration();

// The policy's; 0 where it has no wish, or this process does not push.
int64_t PreferredPartitionBytes();

// The policy's; nothing where it has nothing to say, or this process does not push.
prophet::Learned WhatItLearned();

// Sleeps until push_pull operations have finished or the time is over; returns how many handles it
// wrote.
int NextDone(std::chrono::milliseconds timeout, int* handles, int capacity);

// The number under which BytePS declared the tensor of this name, -1 if it did not. Not while
// BytePS suspends, which clears its table unguarded.
int64_t TensorNumber(const std::string& name);

}  // namespace byteprophet
