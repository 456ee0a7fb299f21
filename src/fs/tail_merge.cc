#include "fs/tail_merge.h"

#include <algorithm>
#include <string>
#include <utility>

namespace cairnfs::fs {
namespace {

// A piece up to this size is stored again with whatever follows it: the disk writes whole pages anyway.
constexpr uint64_t kSmallBytes = kPageBytes;

// A sync that brings a share of the tail as large as this stores all of it, in the chunk of a file written at once. One
// of a page or two, and what a log adds to them, would only wait for it.
constexpr uint64_t kWholeTailShare = 16;
constexpr uint64_t kWholeTailNewBytesMin = 9 * kKiB;

// A sync whose bytes are in memory leaves so many pieces before it merges them: each merge puts a chunk.
constexpr size_t kManyPieces = 8;

// Whether a piece is stored again with what follows it.
bool IsJoined(uint64_t piece_bytes, uint64_t following_bytes) {
  return piece_bytes <= std::max(following_bytes, kSmallBytes);
}

// A chunk, or what a later one that begins within it has left of it.
bool BeginsAChunk(const Extent& extent) { return extent.chunk_offset == 0; }

// Where the chunks of the bytes end, the last end included, if the first of them begins one.
std::vector<uint64_t> FindEnds(std::string_view bytes, const chunking::ChunkParams& params) {
  chunking::CutFinder finder(params);
  std::vector<uint64_t> ends;
  uint64_t position = 0;
  while (position < bytes.size()) {
    position += finder.Feed(AsBytes(bytes.substr(position))).consumed;
    ends.push_back(position);
  }
  return ends;
}

bool EndsAtCut(std::string_view chunk, const chunking::ChunkParams& params) {
  chunking::CutFinder finder(params);
  const auto step = finder.Feed(AsBytes(chunk));
  return step.cut && step.consumed == chunk.size();
}

// The extents before the end of the file, in its last leaf.
std::vector<Extent> LastExtents(const ExtentMap& extents, const TailMerge& merge) {
  const uint64_t window = std::min<uint64_t>(merge.size, 4 * uint64_t{merge.params.size_bytes_max});
  const uint64_t begin = std::max(merge.size - window, AlignDown(merge.size - 1, kLeafBytes));
  std::vector<Extent> last;
  if (!extents.IsLoaded(begin, merge.size - begin)) return last;
  extents.ForEach(begin, merge.size - begin, [&](const Extent& extent) { last.push_back(extent); });
  return last;
}

// How many of the last extents are to be merged: back to the first piece that is no longer than all that follows it.
// One that is long enough to end at a cut may do so, and is `uncertain` then: the first of those counted.
size_t CountPieces(const std::vector<Extent>& last, const TailMerge& merge, bool& uncertain) {
  const uint64_t chunk_bytes_min = merge.params.size_bytes_min;
  uncertain = false;
  if (last.empty() || last.back().end() != merge.size || !BeginsAChunk(last.back())) return 0;
  uint64_t length = last.back().length;
  size_t joined = 1;
  for (size_t count = 1; count < last.size(); ++count) {
    const Extent& piece = last[last.size() - 1 - count];
    const uint64_t end = merge.size - length;
    if (!BeginsAChunk(piece) || piece.end() != end) break;
    if (piece.length >= chunk_bytes_min) {
      uncertain = joined == count && length >= chunk_bytes_min;
      return uncertain ? count + 1 : joined;
    }
    if (IsJoined(piece.length, length)) joined = count + 1;
    length += piece.length;
  }
  return joined;
}

}  // namespace

uint64_t TailStart(const ExtentMap& extents, const GrowingTail& tail) {
  const uint64_t new_bytes = tail.end - tail.stored_end;
  if (new_bytes >= kWholeTailNewBytesMin && new_bytes * kWholeTailShare >= tail.end - tail.start) return tail.start;
  if (!extents.IsLoaded(tail.start, tail.stored_end - tail.start)) return tail.stored_end;
  std::vector<Extent> pieces;
  extents.ForEach(tail.start, tail.stored_end - tail.start, [&](const Extent& extent) { pieces.push_back(extent); });
  uint64_t from = tail.stored_end;
  for (auto piece = pieces.rbegin(); piece != pieces.rend() && piece->end() == from; ++piece) {
    if (!IsJoined(piece->length, tail.end - from)) break;
    from = piece->offset;
  }
  return from;
}

bool EndsInShortPieces(const ExtentMap& extents, uint64_t offset, const TailMerge& merge) {
  const uint64_t chunk_bytes_min = merge.params.size_bytes_min;
  const uint64_t begin = offset - std::min<uint64_t>(offset, 2 * chunk_bytes_min);
  if (!extents.IsLoaded(begin, offset - begin)) return false;
  std::vector<Extent> last;
  extents.ForEach(begin, offset - begin, [&](const Extent& extent) { last.push_back(extent); });
  size_t count = 0;
  uint64_t length = 0;
  for (auto piece = last.rbegin(); piece != last.rend() && piece->end() == offset - length; ++piece) {
    if (!BeginsAChunk(*piece) || piece->length >= chunk_bytes_min) break;
    ++count;
    length += piece->length;
  }
  return count >= kManyPieces || length >= chunk_bytes_min;
}

uint64_t MergeTail(ExtentMap& extents, const TailMerge& merge) {
  const std::vector<Extent> last = LastExtents(extents, merge);
  bool uncertain = false;
  const size_t count = CountPieces(last, merge, uncertain);
  if (count < 2) return 0;
  const auto first = last.end() - static_cast<ptrdiff_t>(count);
  std::vector<std::string> pieces;  // the last one first
  for (auto piece = last.end(); piece-- != first;) {
    auto chunk = merge.read(*piece);
    if (!chunk.ok() || chunk->size() != piece->chunk_size) break;
    chunk->resize(piece->length);
    if (piece == first && uncertain && EndsAtCut(*chunk, merge.params)) break;
    pieces.push_back(*std::move(chunk));
  }
  if (pieces.size() < 2) return 0;
  std::string bytes;
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) bytes += *piece;
  const uint64_t begin = merge.size - bytes.size();
  std::vector<Extent> merged;
  uint64_t from = 0;
  for (uint64_t end : FindEnds(bytes, merge.params)) {
    const uint64_t length = end - from;
    auto digest = merge.put(std::string_view(bytes).substr(from, length));
    if (!digest.ok()) return 0;  // the next round tries again
    merged.push_back({begin + from, length, *digest, 0, static_cast<uint32_t>(length)});
    from = end;
  }
  for (const Extent& extent : merged) extents.Replace(extent.offset, extent.length, &extent);
  return bytes.size();
}

}  // namespace cairnfs::fs
