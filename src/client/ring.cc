#include "client/ring.h"

#include <algorithm>
#include <cassert>

#include "base/types.h"

namespace cairnfs::client {

Ring::~Ring() {
  if (buffer_ != nullptr) devices_.FreePinned(buffer_, bytes_);
}

Status Ring::Reserve(uint64_t bytes) {
  bytes = AlignUp(bytes, kAlignment);
  const bool pins = devices_.Pins();
  if (bytes <= bytes_ && (is_pinned_ || !pins)) return {};
  bytes = std::max(bytes, bytes_);
  if (buffer_ != nullptr) devices_.FreePinned(buffer_, bytes_);
  buffer_ = nullptr;
  bytes_ = 0;
  const Result<void*> memory = devices_.AllocatePinned(bytes);
  if (!memory.ok()) return memory.error().WithContext("the ring");
  buffer_ = static_cast<std::byte*>(*memory);
  bytes_ = bytes;
  is_pinned_ = pins;
  return {};
}

std::byte* Ring::SetAside(uint64_t bytes) {
  assert(bytes <= bytes_);
  first_ = AlignUp(bytes, kAlignment);
  return buffer_;
}

std::byte* Ring::TakeNow(uint64_t bytes) {
  bytes = AlignUp(std::max<uint64_t>(bytes, 1), kAlignment);
  uint64_t begin = first_;
  if (!pieces_.empty()) {
    const uint64_t head = pieces_.back().end;
    const uint64_t tail = pieces_.front().begin;
    // Given out is [tail, head), or [tail, the end) and [first_, head) when the last piece lies before the first.
    if (pieces_.back().begin >= tail) {
      if (head + bytes <= bytes_) {
        begin = head;
      } else if (first_ + bytes > tail) {
        return nullptr;
      }
    } else if (head + bytes <= tail) {
      begin = head;
    } else {
      return nullptr;
    }
  } else if (bytes > room()) {
    return nullptr;
  }
  pieces_.push_back({begin, begin + bytes, false});
  return buffer_ + begin;
}

std::byte* Ring::Take(uint64_t bytes) {
  assert(bytes <= PieceBytesMax());
  MutexLock lock(mutex_);
  for (;;) {
    if (std::byte* piece = TakeNow(bytes)) return piece;
    changed_.Wait(mutex_);
  }
}

void Ring::Give(const std::byte* piece) {
  const auto begin = static_cast<uint64_t>(piece - buffer_);
  MutexLock lock(mutex_);
  const auto found = std::find_if(pieces_.begin(), pieces_.end(),
                                  [&](const Given& other) { return other.begin == begin && !other.is_back; });
  assert(found != pieces_.end());
  found->is_back = true;
  while (!pieces_.empty() && pieces_.front().is_back) pieces_.pop_front();
  changed_.NotifyAll();
}

}  // namespace cairnfs::client
