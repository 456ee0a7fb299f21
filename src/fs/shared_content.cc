#include "fs/shared_content.h"

#include <algorithm>

#include "fs/inode.h"

namespace cairnfs::fs {

void SharedContent::Changes::Add(const Changes& more) {
  ranges.Add(more.ranges);
  size_min = std::max(size_min, more.size_min);
  size_is_set = size_is_set || more.size_is_set;
  times_are_set = times_are_set || more.times_are_set;
}

void SharedContent::NoteTruncation(uint64_t size) {
  own.ranges.Add(size, kFileSizeMax);
  own.size_is_set = true;
  own.size_min = std::min(own.size_min, size);
}

void SharedContent::EndPublishing() {
  publishing = {};
  publishing_chunks.clear();
  is_sent = is_in_doubt = false;
}

bool HasUnpublishedBytes(const Content& content) {
  return !content.shared().own.ranges.empty() || content.overlay.HasUnstored() || !content.flying.empty();
}

namespace {

// What lies in [begin, end) of `from`, holes included, takes the place of what lies there in `to`.
Status LayOver(ExtentMap& to, ExtentMap& from, uint64_t begin, uint64_t end, store::ChunkStore& chunks) {
  CAIRNFS_RETURN_IF_ERROR(to.EnsureLoaded(begin, 1, chunks));
  CAIRNFS_RETURN_IF_ERROR(to.EnsureLoaded(end - 1, 1, chunks));
  CAIRNFS_RETURN_IF_ERROR(from.EnsureLoaded(begin, end - begin, chunks));
  to.Replace(begin, end - begin, nullptr);
  Status status;
  from.ForEach(begin, end - begin, [&](const Extent& extent) {
    if (status.ok()) status = to.EnsureLoaded(extent.offset, extent.length, chunks);
    if (status.ok()) to.Replace(extent.offset, extent.length, &extent);
  });
  return status;
}

}  // namespace

bool ReplaceAll(const SharedContent::Changes& changes, uint64_t size) {
  bool covers = true;
  changes.ranges.ForEachGap(0, std::max<uint64_t>(size, 1), [&](uint64_t, uint64_t) { covers = false; });
  return covers;
}

Status Rebase(Content& content, const std::optional<meta::FileRecord>& record, uint64_t revision,
              store::ChunkStore& chunks) {
  SharedContent& shared = content.shared();
  SharedContent::Changes ours = shared.publishing;
  ours.Add(shared.own);
  ExtentMap merged;
  // A recipe of which nothing stays need not be readable.
  if (record && !ReplaceAll(ours, kFileSizeMax)) {
    CAIRNFS_ASSIGN_OR_RETURN(const Recipe recipe, Recipe::Decode(record->recipe));
    CAIRNFS_RETURN_IF_ERROR(LoadExtents(recipe, record->size, merged, chunks));
  }
  Status status;
  ours.ranges.ForEach([&](uint64_t begin, uint64_t end) {
    if (status.ok()) status = LayOver(merged, content.extents, begin, end, chunks);
  });
  CAIRNFS_RETURN_IF_ERROR(status);
  content.extents = std::move(merged);
  const uint64_t size = record ? record->size : 0;
  if (!ours.size_is_set) content.size = std::max(size, ours.size_min);
  content.published_size = ours.size_is_set ? std::min(content.published_size, size) : size;
  if (record && !ours.times_are_set) {
    content.mtime = ours.empty() ? record->mtime : std::max(content.mtime, record->mtime);
    content.ctime = ours.empty() ? record->ctime : std::max(content.ctime, record->ctime);
  }
  content.unique_bytes = record ? record->unique_bytes : 0;
  if (record && !content.quota_is_set) content.quota = record->quota;
  shared.base_revision = revision;
  return {};
}

Status LoadExtents(const Recipe& recipe, uint64_t size, ExtentMap& extents, store::ChunkStore& chunks) {
  CAIRNFS_RETURN_IF_ERROR(extents.Load(recipe, chunks));
  // A record may name extents past its size, of bytes whose predecessors were not stored then.
  if (extents.extent_count() > 0) {
    CAIRNFS_RETURN_IF_ERROR(extents.EnsureLoaded(size, 1, chunks));
    extents.Replace(size, kFileSizeMax - size, nullptr);
  }
  return {};
}

}  // namespace cairnfs::fs
