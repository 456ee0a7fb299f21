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
    if (!cut) cut = FindCut(room, size_before, position_min);
    if (!cut && size_before + room.size() == params_.size_bytes_max) cut = room.size();
    if (cut) {
      Step step{*cut, true, std::move(anchors_)};
      Reset();
      return step;
    }
  }
  Remember(room);
  return {room.size(), false};
}

// Looks at the windows in `bytes`, which begin at position `base` of the chunk; those that begin before `position_min`
// are not looked at. Notes the anchors, up to the cut. Returns the bytes up to the cut.
std::optional<size_t> CutFinder::FindCut(ByteSpan bytes, size_t base, size_t position_min) {
  size_t from = position_min > base ? position_min - base : 0;
  while (from < bytes.size()) {
    const size_t next_anchor_min = anchors_.empty() ? 0 : anchors_.back() + kAnchorDistanceMin - kWindowBytes;
    const size_t cuts_only_end = next_anchor_min > base ? next_anchor_min - base : 0;
    if (from < cuts_only_end) {
      const size_t end = std::min(bytes.size(), cuts_only_end + kWindowBytes - 1);
      auto candidate = FindCandidate(bytes.subspan(from, end - from), params_.mask_bits);
      if (candidate) return from + *candidate + kWindowBytes;
      from = cuts_only_end;
      continue;
    }
    auto anchor = FindCandidate(bytes.subspan(from), 0);
    if (!anchor) return std::nullopt;
    const size_t at = from + *anchor;
    anchors_.push_back(static_cast<uint32_t>(base + at + kWindowBytes));
    if (FindCandidate(bytes.subspan(at, kWindowBytes), params_.mask_bits)) return at + kWindowBytes;
    from = at + 1;
  }
  return std::nullopt;
}

// Windows that begin in the bytes remembered from earlier pieces and end in `room`. Returns the bytes of `room` up to
// the cut.
std::optional<size_t> CutFinder::FindInSeam(ByteSpan room, size_t position_min) {
  const size_t tail_size = std::min(chunk_size_, tail_.size());
  const size_t tail_position = chunk_size_ - tail_size;
  if (position_min >= chunk_size_) return std::nullopt;

  std::array<std::byte, 2 * (kWindowBytes - 1)> seam;
  const size_t head_size = std::min(room.size(), kWindowBytes - 1);
  std::copy_n(tail_.begin(), tail_size, seam.begin());
  std::copy_n(room.begin(), head_size, seam.begin() + static_cast<ptrdiff_t>(tail_size));
  auto cut = FindCut(ByteSpan(seam).first(tail_size + head_size), tail_position, position_min);
  if (!cut) return std::nullopt;
  return *cut - tail_size;
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

void CutFinder::Reset() {
  chunk_size_ = 0;
  anchors_.clear();
}

}  // namespace cairnfs::chunking
