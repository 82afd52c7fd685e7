// A named piece of shared memory that the processes of one machine meet in, and by which each can
// tell whether another still lives.
//
// Life of a member is a POSIX record lock on one byte of the segment's file, which the kernel drops
// when the process ends in whatever way. Unlike a process number it means the same in every PID
// namespace, and unlike an open file description it is not inherited by a forked child that
// outlives its parent. A process that closes another descriptor of the same file would lose it;
// nobody opens it twice, and once the name is gone nobody can.
#pragma once

#include <cstddef>
#include <string>

namespace byteprophet {

class SharedSegment {
 public:
  // Makes or opens /dev/shm/NAME with memory for `size_bytes`, zero when new. Throws
  // std::runtime_error, also where the memory is not there.
  SharedSegment(const std::string& name, size_t size_bytes);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  void* data() const { return data_; }
  // Removes the name; the memory lives until the last process that has it mapped is gone.
  void Unlink() const;
  // Takes the life lock of member `index`; false where another process has it.
  bool ClaimLife(int index) const;
  // Whether another process has it. Our own process is not asked: its locks do not conflict.
  bool IsAliveElsewhere(int index) const;

 private:
  const std::string name_;
  const size_t size_bytes_;
  int file_ = -1;
  void* data_ = nullptr;
};

}  // namespace byteprophet
