#include "shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>

#include "native/byteps/no_shared_memory.h"

namespace byteprophet {
namespace {

struct flock LifeOf(int index) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = index;
  lock.l_len = 1;
  return lock;
}

}  // namespace

SharedSegment::SharedSegment(const std::string& name, size_t size_bytes)
    : name_("/" + name), size_bytes_(size_bytes) {
  const auto fail = [&](const char* call, int error) {
    if (file_ >= 0) {
      close(file_);
      Unlink();
    }
    throw std::runtime_error(NoSharedMemory(name, call, error, size_bytes));
  };
  file_ = shm_open(name_.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (file_ < 0) fail("shm_open", errno);
  // Takes the memory now: where /dev/shm is full (64 MB in many containers), this fails, while a
  // later access would kill the process.
  int error = 0;
  do {
    error = posix_fallocate(file_, 0, static_cast<off_t>(size_bytes));
  } while (error == EINTR);
  if (error != 0) fail("posix_fallocate", error);
  data_ = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (data_ == MAP_FAILED) fail("mmap", errno);
}

SharedSegment::~SharedSegment() {
  munmap(data_, size_bytes_);
  close(file_);
}

void SharedSegment::Unlink() const { shm_unlink(name_.c_str()); }

bool SharedSegment::ClaimLife(int index) const {
  struct flock lock = LifeOf(index);
  return fcntl(file_, F_SETLK, &lock) == 0;
}

bool SharedSegment::IsAliveElsewhere(int index) const {
  struct flock lock = LifeOf(index);
  return fcntl(file_, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace byteprophet
