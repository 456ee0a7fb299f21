// Packs small payloads one after another into a buffer of the pool. Each becomes a slice that keeps the buffer alive,
// and payloads of one writer in a row lie in one piece. For one thread.
#pragma once

#include <cassert>
#include <cstring>

#include "io/buffer_pool.h"

namespace cairnfs::fuse {

class Packer {
 public:
  // False when a new buffer is needed first.
  bool Fits(size_t size) {
    if (buffer_ && buffer_.Unique()) used_bytes_ = 0;
    return buffer_ && used_bytes_ + size <= io::BufferPool::kPayloadBytes;
  }
  // Lets go of the buffer: to be called before waiting for a new one, so that nothing is held meanwhile.
  void Drop() { buffer_ = {}; }
  void Refill(io::BufferRef buffer) {
    buffer_ = std::move(buffer);
    used_bytes_ = 0;
  }
  // REQUIRES: Fits(payload.size()).
  io::Slice Add(ByteSpan payload) {
    assert(Fits(payload.size()));
    std::byte* to = buffer_.payload() + used_bytes_;
    std::memcpy(to, payload.data(), payload.size());
    used_bytes_ += payload.size();
    return io::Slice{buffer_, to, payload.size()};
  }

 private:
  io::BufferRef buffer_;
  size_t used_bytes_ = 0;
};

}  // namespace cairnfs::fuse
