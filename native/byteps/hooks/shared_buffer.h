// A tensor's buffer in shared memory: what patch 0042 calls.
//
// BytePS made a file of the size and touched its memory later. Where /dev/shm was full by then
// (64 MB in many containers), that was a bus error, or "Bad address" from whoever sent it. Here the
// memory is taken at once, and a worker that does not get it ends with a line that says what to do.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "native/byteps/leaving.h"
#include "native/byteps/no_shared_memory.h"

namespace byteprophet {

// Makes or opens the buffer `name`, which local ranks share, of `size_bytes`, zero when new. Ends
// the process where there is no memory for it.
inline void* OpenSharedBuffer(const std::string& name, size_t size_bytes) {
  const auto fail = [&](const char* call, int error) {
    Say("error", NoSharedMemory(name, call, error, size_bytes));
    EndAtOnce(1, SharedMemoryName());
  };
  const int file = shm_open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
  if (file < 0) fail("shm_open", errno);
  int error = 0;
  do {
    error = posix_fallocate(file, 0, static_cast<off_t>(size_bytes));
  } while (error == EINTR);
  if (error != 0) fail("posix_fallocate", error);
  void* data = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) fail("mmap", errno);
  close(file);
  return data;
}

}  // namespace byteprophet
