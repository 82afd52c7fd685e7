// Runs the ranks of a local group, as threads or as processes.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace byteprophet {

// A name in /dev/shm that nobody else has.
std::string FreshName();
// Whether anything of that name is still in /dev/shm.
bool IsThere(const std::string& name);

// Calls body(rank) for every rank in a thread of its own and waits for all. Gives what each threw
// as LocalGroupError, or "".
std::vector<std::string> RunThreads(int size, const std::function<void(int)>& body);

// As RunThreads, in forked processes. "killed" where a signal ended it; within `limit` all must
// end, else they are killed and the text is "hung".
std::vector<std::string> RunProcesses(int size, const std::function<void(int)>& body,
                                      std::chrono::seconds limit = std::chrono::seconds(60));

}  // namespace byteprophet
