#include "fs/landed_chunks.h"

#include <algorithm>

namespace cairnfs::fs {

uint64_t LayChunk(Content& content, const FlyingChunk& chunk, const std::vector<Extent>& extents) {
  RangeSet ranges(SIZE_MAX);
  if (content.publish->is_shared()) {
    // What an earlier provisional chunk had may be published by now, and others may have written there since.
    const uint64_t begin = chunk.offset + chunk.stored_before;
    ranges.Add(begin, chunk.offset + chunk.size);
    for (const auto& range : content.lost) ranges.Add(std::max(range.begin, chunk.offset), std::min(range.end, begin));
    ranges.Remove(chunk.filled_holes);
    content.publish->NoteRanges(ranges);
  }
  if (!chunk.skips_stored) ranges.Add(chunk.offset, chunk.offset + chunk.size);
  uint64_t laid = 0;
  for (const Extent& extent : extents) {
    const uint64_t extent_begin = chunk.offset + extent.offset;
    ranges.ForEach([&](uint64_t range_begin, uint64_t range_end) {
      const uint64_t begin = std::max(range_begin, extent_begin);
      const uint64_t end = std::min(range_end, extent_begin + extent.length);
      if (begin >= end) return;
      const auto chunk_offset = static_cast<uint32_t>(extent.chunk_offset + (begin - extent_begin));
      const Extent part{begin, end - begin, extent.digest, chunk_offset, extent.chunk_size};
      content.extents.Replace(part.offset, part.length, &part);
      laid += part.length;
    });
  }
  return laid;
}

void ForgetFilledHoles(Content& content, const FlyingChunk& chunk) {
  chunk.filled_holes.ForEach([&](uint64_t begin, uint64_t end) {
    content.overlay.Visit(
        begin, end - begin, [](uint64_t, const io::Slice&) {},
        [&](uint64_t gap, uint64_t length) { content.filled_holes.Remove(gap, gap + length); });
  });
}

}  // namespace cairnfs::fs
