#include "fs/backing_fill.h"

#include <algorithm>
#include <cassert>
#include <deque>
#include <memory>
#include <utility>

#include "base/thread_annotations.h"
#include "fs/extent_map.h"
#include "fs/waits.h"

namespace cairnfs::fs {
namespace {

// Chunks that are asked for and not written yet. Enough for a disk, and little of the pool.
constexpr size_t kChunksAtOnce = 8;

// What comes from the store's threads, in any order.
struct Arrivals {
  struct Arrival {
    size_t index;
    Result<store::ChunkData> chunk;
  };
  Mutex mutex;
  CondVar changed;
  std::deque<Arrival> arrived GUARDED_BY(mutex);
};

Error Changed() { return MakeError(ErrorCode::kBusy, "the file was changed meanwhile"); }

}  // namespace

BackingFill::Basis BackingFill::BasisOf(const Content& content) {
  return {.content = &content,
          .changes = content.changes,
          .revision = content.publish->is_shared() ? content.shared().base_revision : 0,
          .size = content.size};
}

Status BackingFill::CheckClean(const Inode& inode) {
  if (!inode.content || inode.content->must_reload()) {
    return MakeError(ErrorCode::kBusy, "the file's content is not in memory");
  }
  if (inode.write_open_count > 0) return MakeError(ErrorCode::kBusy, "the file is open for writing");
  const Content& content = *inode.content;
  // Somebody may still look for cuts, and finds none: all of it is stored.
  if (content.changed || content.unrecorded || !content.quiet() || !content.lost.empty()) {
    return MakeError(ErrorCode::kBusy, "the file has bytes that are not in its record");
  }
  return {};
}

Status BackingFill::CheckUnchanged() const {
  CAIRNFS_RETURN_IF_ERROR(CheckClean(*inode_));
  return BasisOf(*inode_->content) == basis_ ? Status() : Status(Changed());
}

bool BackingFill::IsCurrent(const InodePtr& inode) const {
  assert(inode == inode_);
  static_cast<void>(inode);
  inode_->mutex.AssertHeld();
  return CheckUnchanged().ok();
}

Status BackingFill::Begin() {
  {
    MutexLock lock(inode_->mutex);
    CAIRNFS_RETURN_IF_ERROR(CheckClean(*inode_));
    basis_ = BasisOf(*inode_->content);
  }
  // First, so that the size says where huge pages fit.
  return to_.Truncate(basis_.size);
}

Result<std::vector<Extent>> BackingFill::ExtentsOf(uint64_t offset, uint64_t length) {
  std::vector<Digest> pages;
  {
    MutexLock lock(inode_->mutex);
    CAIRNFS_RETURN_IF_ERROR(CheckUnchanged());
    pages = inode_->content->extents.MissingPages(offset, length);
  }
  // Waited for here, so that nobody waits for them with the inode's lock.
  for (const Digest& page : pages) {
    CAIRNFS_ASSIGN_OR_RETURN(const store::ChunkData data, store::GetBlocking(chunks_, page));
    static_cast<void>(data);
  }
  std::vector<Extent> extents;
  MutexLock lock(inode_->mutex);
  CAIRNFS_RETURN_IF_ERROR(CheckUnchanged());
  CAIRNFS_RETURN_IF_ERROR(inode_->content->extents.EnsureLoaded(offset, length, chunks_));
  inode_->content->extents.ForEach(offset, length, [&](const Extent& extent) { extents.push_back(extent); });
  return extents;
}

Status BackingFill::WriteExtent(const Extent& extent, const Result<store::ChunkData>& chunk) {
  if (!chunk.ok()) return OfNamedChunk(chunk.error());
  if (chunk->size < extent.chunk_offset + extent.length) {
    return MakeError(ErrorCode::kCorrupt, "a chunk is shorter than its extent");
  }
  uint64_t skip = extent.chunk_offset, at = extent.offset;
  for (const io::Slice& slice : chunk->slices) {
    if (at == extent.end()) break;
    if (skip >= slice.size) {
      skip -= slice.size;
      continue;
    }
    const uint64_t size = std::min<uint64_t>(slice.size - skip, extent.end() - at);
    CAIRNFS_RETURN_IF_ERROR(to_.Write(at, slice.bytes().subspan(skip, size)));
    at += size;
    skip = 0;
  }
  return {};
}

Status BackingFill::FillFrom(std::span<const Extent> extents, const Context& context) {
  std::vector<Digest> digests;
  digests.reserve(extents.size());
  for (const Extent& extent : extents) digests.push_back(extent.digest);
  chunks_.Prefetch(digests);
  // After an error, what is on its way still comes to it.
  const auto arrivals = std::make_shared<Arrivals>();
  size_t asked = 0;
  for (size_t written = 0; written < extents.size(); written++) {
    for (; asked < extents.size() && asked - written < kChunksAtOnce; asked++) {
      chunks_.Get(extents[asked].digest, [arrivals, index = asked](Result<store::ChunkData> chunk) {
        MutexLock lock(arrivals->mutex);
        arrivals->arrived.push_back({index, std::move(chunk)});
        arrivals->changed.NotifyAll();
      });
    }
    MutexLock lock(arrivals->mutex);
    const auto has_come = [&] {
      arrivals->mutex.AssertHeld();
      return !arrivals->arrived.empty();
    };
    if (!context.Wait(arrivals->mutex, arrivals->changed, has_come)) return CallerIsGone();
    const Arrivals::Arrival arrival = std::move(arrivals->arrived.front());
    arrivals->arrived.pop_front();
    lock.Unlock();
    CAIRNFS_RETURN_IF_ERROR(WriteExtent(extents[arrival.index], arrival.chunk));
  }
  return {};
}

Status BackingFill::Run(const Context& context) {
  CAIRNFS_RETURN_IF_ERROR(Begin());
  for (uint64_t offset = 0; offset < basis_.size; offset += kLeafBytes) {
    if (context.Expired()) return CallerIsGone();
    const uint64_t length = std::min(kLeafBytes, basis_.size - offset);
    CAIRNFS_ASSIGN_OR_RETURN(const std::vector<Extent> extents, ExtentsOf(offset, length));
    CAIRNFS_RETURN_IF_ERROR(FillFrom(extents, context));
  }
  to_.EndWriting();
  MutexLock lock(inode_->mutex);
  return CheckUnchanged();
}

}  // namespace cairnfs::fs
