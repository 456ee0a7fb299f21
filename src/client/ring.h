// Memory between a source and a file, given out piece by piece from one buffer, in the order of a ring: pieces come
// back in any order, and their room is free again when all that were given out before them are back.
#pragma once

#include <cstdint>
#include <deque>

#include "base/result.h"
#include "base/thread_annotations.h"
#include "base/types.h"
#include "client/device.h"

namespace cairnfs::client {

// A piece of one block is taken while another one is out.
inline constexpr uint64_t kRingBytesMin = 2 * uint64_t{kBlockBytes};

class Ring {
 public:
  static constexpr uint64_t kAlignment = 4096;  // of every piece

  explicit Ring(Devices& devices) : devices_(devices) {}
  ~Ring();  // REQUIRES: all pieces are back.
  Ring(const Ring&) = delete;

  // Makes the buffer as large as that if it is smaller, and pins it if it was not and can be. kExhausted. REQUIRES: all
  // pieces are back.
  Status Reserve(uint64_t bytes);
  uint64_t bytes() const { return bytes_; }

  // Takes the first `bytes` of the buffer out of the ring until PutBack: a piece that is kept for long would hold up
  // all that come after it. REQUIRES: all pieces are back; bytes <= bytes().
  std::byte* SetAside(uint64_t bytes);
  void PutBack() { first_ = 0; }                     // REQUIRES: all pieces are back.
  uint64_t room() const { return bytes_ - first_; }  // what pieces come from
  // The largest piece. Pieces are aligned, so that half of the room need not be one.
  uint64_t PieceBytesMax() const { return AlignDown(room() / 2, kAlignment); }

  // Has its memory until it goes. Any thread.
  class Piece {
   public:
    // Waits until there is room: until pieces come back, which those who have them always give. REQUIRES: bytes <=
    // PieceBytesMax().
    Piece(Ring& ring, uint64_t bytes) : ring_(ring), data_(ring.Take(bytes)) {}
    ~Piece() { ring_.Give(data_); }
    Piece(const Piece&) = delete;
    std::byte* data() const { return data_; }

   private:
    Ring& ring_;
    std::byte* const data_;
  };

 private:
  struct Given {
    uint64_t begin, end;
    bool is_back;
  };
  std::byte* Take(uint64_t bytes);
  void Give(const std::byte* piece);
  std::byte* TakeNow(uint64_t bytes) REQUIRES_LOCK(mutex_);

  Devices& devices_;
  std::byte* buffer_ = nullptr;  // changed by Reserve alone
  uint64_t bytes_ = 0;
  bool is_pinned_ = false;
  uint64_t first_ = 0;  // what lies before is set aside
  Mutex mutex_;
  CondVar changed_;
  std::deque<Given> pieces_ GUARDED_BY(mutex_);  // in the order they were given out; at most bytes_ / kAlignment
};

}  // namespace cairnfs::client
