#include <algorithm>
#include <cassert>

#include "chunking/chunker.h"

namespace cairnfs::chunking {

CutFinder::Step CutFinder::Feed(ByteSpan piece) {
  const size_t size_before = chunk_size_;
  const ByteSpan room = piece.first(std::min<size_t>(piece.size(), params_.size_bytes_max - size_before));
  // No window that begins before this position of the chunk can end it.
  const size_t position_min = params_.size_bytes_min - kWindowBytes;

  if (size_before + room.size() >= params_.size_bytes_min) {
    std::optional<size_t> cut = FindInSeam(room, position_min);
    if (!cut) {
      size_t skip = position_min > size_before ? position_min - size_before : 0;
      auto candidate = FindCandidate(room.subspan(skip), params_.mask_bits);
      if (candidate) cut = skip + *candidate + kWindowBytes;
    }
    if (!cut && size_before + room.size() == params_.size_bytes_max) cut = room.size();
    if (cut) {
      Reset();
      return {*cut, true};
    }
  }
  Remember(room);
  return {room.size(), false};
}

// Windows that begin in the bytes remembered from earlier pieces and end in `room`. Returns the bytes of `room` up to
// the cut.
std::optional<size_t> CutFinder::FindInSeam(ByteSpan room, size_t position_min) const {
  const size_t tail_size = std::min(chunk_size_, tail_.size());
  const size_t tail_position = chunk_size_ - tail_size;
  const size_t skip = position_min > tail_position ? position_min - tail_position : 0;
  if (skip >= tail_size) return std::nullopt;

  std::array<std::byte, 2 * (kWindowBytes - 1)> seam;
  const size_t head_size = std::min(room.size(), kWindowBytes - 1);
  std::copy_n(tail_.begin(), tail_size, seam.begin());
  std::copy_n(room.begin(), head_size, seam.begin() + static_cast<ptrdiff_t>(tail_size));
  auto candidate = FindCandidate(ByteSpan(seam).subspan(skip, tail_size + head_size - skip), params_.mask_bits,
                                 Implementation::kScalar);
  if (!candidate) return std::nullopt;
  return skip + *candidate + kWindowBytes - tail_size;
}

void CutFinder::Remember(ByteSpan room) {
  if (room.size() >= tail_.size()) {
    std::copy_n(room.end() - static_cast<ptrdiff_t>(tail_.size()), tail_.size(), tail_.begin());
  } else {
    const size_t tail_size = std::min(chunk_size_, tail_.size());
    const size_t kept = std::min(tail_size, tail_.size() - room.size());
    std::copy_n(tail_.begin() + static_cast<ptrdiff_t>(tail_size - kept), kept, tail_.begin());
    std::copy(room.begin(), room.end(), tail_.begin() + static_cast<ptrdiff_t>(kept));
  }
  chunk_size_ += room.size();
}

void CutFinder::Reset() { chunk_size_ = 0; }

}  // namespace cairnfs::chunking
