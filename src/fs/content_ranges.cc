// Where the stored and accepted bytes of a file lie.
#include <algorithm>
#include <utility>

#include "fs/contents.h"

namespace cairnfs::fs {
namespace {

constexpr size_t kPagesAtOnce = 64;
constexpr uint64_t kSoughtAtOnce = kPagesAtOnce * kLeafBytes;

// Where the sought byte is, if it lies before `limit`.
Result<std::optional<uint64_t>> FindDataIn(Content& content, uint64_t offset, uint64_t limit,
                                           store::ChunkStore& chunks) {
  CAIRNFS_ASSIGN_OR_RETURN(const std::optional<uint64_t> stored, content.extents.FindData(offset, limit, chunks));
  const std::optional<uint64_t> waiting = content.overlay.FindData(offset);
  const uint64_t first = std::min(stored.value_or(kFileSizeMax), waiting.value_or(kFileSizeMax));
  return first < limit ? std::optional(first) : std::nullopt;
}

Result<std::optional<uint64_t>> FindHoleIn(Content& content, uint64_t offset, uint64_t limit,
                                           store::ChunkStore& chunks) {
  for (uint64_t position = offset; position < limit;) {
    const uint64_t past_waiting = content.overlay.FindGap(position);
    if (past_waiting >= limit) break;
    CAIRNFS_ASSIGN_OR_RETURN(const uint64_t past_stored, content.extents.FindHole(past_waiting, limit, chunks));
    if (past_stored == position) return std::optional(position);
    position = past_stored;
  }
  return std::optional<uint64_t>();
}

}  // namespace

// Loads the pages of the recipe that tell of the range; they are read while nobody waits for the inode's lock, which a
// round may want. A failure shows when they are needed.
void Contents::LoadPages(const Context& context, const InodePtr& inode, uint64_t offset, uint64_t length) {
  length = std::min(length, kFileSizeMax - std::min(offset, kFileSizeMax));
  for (;;) {
    std::vector<Digest> pages;
    {
      MutexLock lock(inode->mutex);
      if (!Load(context, inode).ok()) return;
      pages = inode->content->extents.MissingPages(offset, length, kPagesAtOnce);
    }
    if (pages.empty()) return;
    parts_.chunks.Prefetch(pages);
    for (const Digest& page : pages) {
      if (!store::GetBlocking(parts_.chunks, page).ok()) return;
    }
    MutexLock lock(inode->mutex);
    if (!inode->content) return;
    if (!inode->content->extents.EnsureLoaded(offset, length, parts_.chunks, kPagesAtOnce).ok()) return;
  }
}

// Those of the range that the file does not have yet.
Result<uint64_t> Contents::BytesMissingIn(const InodePtr& inode, uint64_t begin, uint64_t end) {
  Content& content = *inode->content;
  CAIRNFS_RETURN_IF_ERROR(content.extents.EnsureLoaded(begin, end - begin, parts_.chunks));
  RangeSet there(SIZE_MAX);
  content.extents.ForEach(begin, end - begin, [&](const Extent& extent) { there.Add(extent.offset, extent.end()); });
  content.overlay.ForEachUnstored([&](uint64_t first, uint64_t last) { there.Add(first, last); });
  uint64_t missing = 0;
  there.ForEachGap(begin, end, [&](uint64_t first, uint64_t last) { missing += last - first; });
  return missing;
}

Result<uint64_t> Contents::FindSought(const Context& context, const InodePtr& inode, uint64_t offset,
                                      FileSystem::Seek what) {
  store::ChunkStore& chunks = parts_.chunks;
  for (uint64_t from = offset;;) {
    // Of data the first page tells, of a hole perhaps the last one.
    LoadPages(context, inode, from, what == FileSystem::Seek::kData ? 1 : kSoughtAtOnce);
    MutexLock lock(inode->mutex);
    CAIRNFS_RETURN_IF_ERROR(Load(context, inode));
    Content& content = *inode->content;
    if (from >= content.size) break;
    const bool is_last = what == FileSystem::Seek::kData || content.size - from <= kSoughtAtOnce;
    const uint64_t limit = is_last ? content.size : from + kSoughtAtOnce;
    CAIRNFS_ASSIGN_OR_RETURN(const std::optional<uint64_t> found, what == FileSystem::Seek::kData
                                                                      ? FindDataIn(content, from, limit, chunks)
                                                                      : FindHoleIn(content, from, limit, chunks));
    if (found) return *found;
    if (is_last && what == FileSystem::Seek::kHole) return limit;  // there is one behind every file
    if (is_last) break;
    from = limit;
  }
  return MakeError(ErrorCode::kNoData, "nothing behind this offset");
}

// The extents of [offset, offset + length) with everything accepted before the call in them; `pins` takes a pin for
// each, unless it is null. Lowers `length` to what the file has.
Result<std::vector<Extent>> Contents::StoredExtents(const Context& context, const InodePtr& inode, uint64_t offset,
                                                    uint64_t& length, std::vector<store::ChunkPin>* pins) {
  LoadPages(context, inode, offset, length);
  std::vector<Extent> extents;
  {
    MutexLock lock(inode->mutex);
    CAIRNFS_RETURN_IF_ERROR(Load(context, inode));
    streams_.CutAll(inode);
    uint64_t target = inode->content->next_chunk_id - 1;
    while (inode->content && !inode->content->flying.empty() && inode->content->flying.begin()->first <= target) {
      auto landed = inode->content->landed.find(inode->content->flying.begin()->first);
      if (landed != inode->content->landed.end() && landed->second.failure) {
        return landed->second.failure->WithContext("the bytes to copy");
      }
      inode->changed_state.Wait(inode->mutex);
    }
    CAIRNFS_RETURN_IF_ERROR(Load(context, inode));
    Content& content = *inode->content;
    length = offset >= content.size ? 0 : std::min(length, content.size - offset);
    if (content.HasLost(offset, offset + length)) {
      return MakeError(ErrorCode::kIo, "bytes of this file could not be stored and are lost");
    }
    CAIRNFS_RETURN_IF_ERROR(content.extents.EnsureLoaded(offset, length, parts_.chunks));
    content.extents.ForEach(offset, length, [&](const Extent& extent) { extents.push_back(extent); });
    if (pins == nullptr) return extents;
    // Under the lock: once the source lets go of a chunk that found no room, nobody may have it any more.
    for (const Extent& extent : extents) {
      CAIRNFS_ASSIGN_OR_RETURN(store::ChunkPin pin, parts_.chunks.Pin(extent.digest, extent.chunk_size));
      pins->push_back(std::move(pin));
    }
  }
  return extents;
}

}  // namespace cairnfs::fs
