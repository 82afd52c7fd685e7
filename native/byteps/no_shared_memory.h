// What to say where shared memory is not to be had.
#pragma once

#include <sys/statvfs.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

namespace byteprophet {

inline std::string Megabytes(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f MB", static_cast<double>(bytes) / 1e6);
  return text;
}

// Why `call` failed with `error` for `size_bytes` of shared memory under `name`. Short: the
// launcher repeats 300 letters of a role's last words.
inline std::string NoSharedMemory(const std::string& name, const char* call, int error,
                                  size_t size_bytes) {
  struct statvfs disk = {};
  if (error != ENOSPC || statvfs("/dev/shm", &disk) != 0)
    return "/dev/shm/" + name + ": no " + Megabytes(size_bytes) + " of shared memory: " + call +
           ": " + std::strerror(error);
  return "/dev/shm is too small: " + Megabytes(size_bytes) + " are needed at once, " +
         Megabytes(disk.f_bavail * disk.f_frsize) + " of " +
         Megabytes(disk.f_blocks * disk.f_frsize) +
         " are free; enlarge it: docker run --shm-size=4g, mount -o remount,size=4g /dev/shm";
}

}  // namespace byteprophet
