// Memory for what has arrived and cannot go where it belongs yet. It is used again and again:
// fresh memory costs a page fault every 4 KiB, which takes as long as to receive those bytes.
//
// Never more is kept than was lent at once. One thread: the inbox's.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace byteprophet::exchange {

class Buffers {
 public:
  // Memory that is lent. It goes back when this ends, before `Buffers` does.
  class Buffer {
   public:
    Buffer() = default;
    ~Buffer() { Reset(); }
    Buffer(Buffer&& other) noexcept { *this = std::move(other); }
    Buffer& operator=(Buffer&& other) noexcept;

    void Reset();
    explicit operator bool() const { return memory_ != nullptr; }
    std::byte* data() const { return memory_.get(); }
    size_t size_bytes() const { return size_bytes_; }

   private:
    friend class Buffers;
    Buffer(Buffers* lender, std::unique_ptr<std::byte[]> memory, size_t size_bytes)
        : lender_(lender), memory_(std::move(memory)), size_bytes_(size_bytes) {}

    Buffers* lender_ = nullptr;
    std::unique_ptr<std::byte[]> memory_;
    size_t size_bytes_ = 0;
  };

  // At least so much memory, whose content is not defined; none if there is no room.
  Buffer Lend(size_t bytes);
  // What came back and waits to be lent again.
  size_t kept_bytes() const { return idle_bytes_; }

 private:
  struct Idle {
    std::unique_ptr<std::byte[]> memory;
    size_t size_bytes;
  };

  void TakeBack(std::unique_ptr<std::byte[]> memory, size_t size_bytes);
  void DropOldest();

  std::vector<Idle> idle_;  // the oldest first
  size_t idle_bytes_ = 0, lent_bytes_ = 0, most_lent_bytes_ = 0;
};

}  // namespace byteprophet::exchange
