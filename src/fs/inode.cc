#include "fs/inode.h"

#include <algorithm>

namespace cairnfs::fs {

const Error* Content::Failure() const {
  for (const auto& [id, chunk] : landed) {
    if (chunk.failure) return &*chunk.failure;
  }
  return nullptr;
}

// All of the range was written since, and the next round that takes the file stores it.
static bool IsWrittenAnew(const Content& content, const Content::LostRange& range) {
  // Other hosts see what was closed and published, and what is still on its way is not.
  if (content.publish->is_shared()) return false;
  RangeSet newer(SIZE_MAX);
  // Not all that is in memory: a run keeps the bytes of a provisional chunk that was lost, and they count as stored.
  content.overlay.ForEachUnstored([&](uint64_t begin, uint64_t end) { newer.Add(begin, end); });
  for (const auto& [id, chunk] : content.flying) {
    if (id > range.chunk_id) newer.Add(chunk->offset, chunk->offset + chunk->size);
  }
  bool is_covered = true;
  newer.ForEachGap(range.begin, range.end, [&](uint64_t, uint64_t) { is_covered = false; });
  return is_covered;
}

// Bytes are lost that nothing on its way takes the place of.
static bool LacksLost(const Content& content) {
  const auto will_be_lost = [](const auto& item) { return item.second.saved.extents.empty() && !item.second.failure; };
  if (std::any_of(content.landed.begin(), content.landed.end(), will_be_lost)) return true;
  const auto is_missing = [&](const Content::LostRange& range) { return !IsWrittenAnew(content, range); };
  return std::any_of(content.lost.begin(), content.lost.end(), is_missing);
}

std::optional<Error> Content::WhyNotWhole() const {
  if (LacksLost(*this)) {
    return MakeError(ErrorCode::kIo, "bytes of the file could not be stored and are lost: write it again or remove it");
  }
  if (const Error* failure = Failure()) return failure->WithContext("bytes of the file");
  // While it is tried again a chunk has no failure, and is no more stored than before.
  if (LacksSpace()) return MakeError(ErrorCode::kNoSpace, "bytes of the file found no room");
  if (recipe_error_noted) return MakeError(ErrorCode::kIo, "the file's recipe could not be stored");
  return std::nullopt;
}

bool Content::IsQuietButForFailed() const {
  if (in_round || flying.empty() || landed.size() < flying.size()) return false;
  // Chunks are applied in order: behind one that failed, others have landed and wait for it.
  return landed.begin()->first == flying.begin()->first && landed.begin()->second.failure.has_value();
}

uint64_t Content::AllocatedBytes() const {
  uint64_t bytes = extents.allocated_bytes();
  for (auto begin = overlay.FindData(0); begin;) {
    const uint64_t end = overlay.FindGap(*begin);
    bytes += end - *begin;
    // What was stored before, or for the time being, lies below.
    extents.ForEach(*begin, end - *begin, [&](const Extent& extent) { bytes -= extent.length; });
    begin = overlay.FindData(end);
  }
  return std::min(bytes, (size + kPageBytes - 1) / kPageBytes * kPageBytes);
}

meta::QuotaBytes Content::QuotaBytes() const {
  const uint64_t allocated = AllocatedBytes();
  return {allocated, std::min(unique_bytes + (changed ? accepted_bytes : 0), allocated)};
}

void Content::FoldNewBytes(uint64_t allocated_bytes) {
  unique_bytes = std::min(unique_bytes + new_bytes->exchange(0), allocated_bytes);
}

uint64_t Content::DirtyBytes() const {
  uint64_t bytes = 0;
  for (const auto& [start, run] : overlay.runs()) bytes += run.length - run.stored;
  for (const auto& [id, chunk] : flying) bytes += chunk->size;
  return bytes;
}

uint64_t Content::UnsavedBytes() const {
  uint64_t bytes_lost = 0;
  for (const auto& range : lost) bytes_lost += range.end - range.begin;
  return std::min(std::max(accepted_bytes, bytes_lost), size);
}

uint64_t Content::UnstoredEnd() const {
  uint64_t last = 0;
  overlay.ForEachUnstored([&](uint64_t, uint64_t end) { last = std::max(last, end); });
  for (const auto& [id, chunk] : flying) last = std::max(last, chunk->offset + chunk->size);
  return std::min(last, size);
}

bool Content::HasLost(uint64_t begin, uint64_t end) const {
  return std::any_of(lost.begin(), lost.end(),
                     [&](const LostRange& range) { return range.begin < end && begin < range.end; });
}

void Content::AddLost(LostRange range) {
  ForgetLost(range.begin, range.end, range.chunk_id + 1);
  // An older neighbour may count as of this chunk where none is in flight that would bring its bytes: chunks are
  // applied in order.
  const bool takes_older = flying.empty() || flying.begin()->first > range.chunk_id;
  std::erase_if(lost, [&](const LostRange& other) {
    if (other.end != range.begin && other.begin != range.end) return false;
    if (other.chunk_id != range.chunk_id && (other.chunk_id > range.chunk_id || !takes_older)) return false;
    range.begin = std::min(range.begin, other.begin);
    range.end = std::max(range.end, other.end);
    return true;
  });
  lost.push_back(range);
}

void Content::ForgetLost(uint64_t begin, uint64_t end, uint64_t chunk_id) {
  std::vector<LostRange> left;
  for (const LostRange& range : lost) {
    if (range.chunk_id >= chunk_id) {
      left.push_back(range);
      continue;
    }
    if (range.begin < begin) left.push_back({range.begin, std::min(range.end, begin), range.chunk_id});
    if (range.end > end) left.push_back({std::max(range.begin, end), range.end, range.chunk_id});
  }
  lost = std::move(left);
}

InodePtr InodeTable::Find(InodeId id) {
  Shard& shard = ShardOf(id);
  MutexLock lock(shard.mutex);
  auto found = shard.inodes.find(id);
  return found == shard.inodes.end() ? nullptr : found->second;
}

InodeId InodeTable::DirectoryOf(InodeId id) {
  const InodePtr inode = Find(id);
  return inode ? InodeId{inode->directory} : InodeId{};
}

InodePtr InodeTable::AddLookup(InodeId id) {
  Shard& shard = ShardOf(id);
  MutexLock lock(shard.mutex);
  InodePtr& inode = shard.inodes[id];
  if (!inode) inode = std::make_shared<Inode>(id);
  inode->lookup_count++;
  return inode;
}

InodePtr InodeTable::Hold(InodeId id) {
  Shard& shard = ShardOf(id);
  MutexLock lock(shard.mutex);
  InodePtr& inode = shard.inodes[id];
  if (!inode) inode = std::make_shared<Inode>(id);
  if (inode->hold_count++ == 0) shard.held.emplace(id, inode);
  return inode;
}

bool InodeTable::EraseIfUnused(Shard& shard, const InodePtr& inode) {
  if (inode->lookup_count > 0 || inode->hold_count > 0) return false;
  return shard.inodes.erase(inode->id) > 0 && inode->unlinked;
}

void InodeTable::Unhold(const InodePtr& inode) {
  Shard& shard = ShardOf(inode->id);
  bool orphan;
  {
    MutexLock lock(shard.mutex);
    if (--inode->hold_count == 0) shard.held.erase(inode->id);
    orphan = EraseIfUnused(shard, inode);
  }
  if (orphan) on_orphan_(inode);
}

void InodeTable::Forget(InodeId id, uint64_t count) {
  Shard& shard = ShardOf(id);
  InodePtr inode, orphan;  // which may have much memory: it goes without the lock
  {
    MutexLock lock(shard.mutex);
    auto found = shard.inodes.find(id);
    if (found == shard.inodes.end()) return;
    inode = found->second;
    inode->lookup_count -= std::min(count, inode->lookup_count);
    if (EraseIfUnused(shard, inode)) orphan = inode;
  }
  if (orphan) on_orphan_(orphan);
}

bool InodeTable::IsGone(const InodePtr& inode) {
  inode->mutex.AssertHeld();
  if (!inode->unlinked || inode->open_count > 0) return false;
  Shard& shard = ShardOf(inode->id);
  MutexLock lock(shard.mutex);
  return inode->lookup_count == 0;
}

void InodeTable::MarkUnlinked(InodeId id, uint64_t freed_bytes) {
  Shard& shard = ShardOf(id);
  InodePtr orphan;
  {
    MutexLock lock(shard.mutex);
    auto found = shard.inodes.find(id);
    InodePtr inode = found == shard.inodes.end() ? std::make_shared<Inode>(id) : found->second;
    inode->unlinked = true;
    inode->freed_bytes = freed_bytes;
    if (found == shard.inodes.end() || EraseIfUnused(shard, inode)) orphan = inode;
  }
  if (orphan) on_orphan_(orphan);
}

void InodeTable::ForEach(const std::function<void(const InodePtr&)>& visit) {
  for (Shard& shard : shards_) {
    std::vector<InodePtr> inodes;
    {
      MutexLock lock(shard.mutex);
      inodes.reserve(shard.inodes.size());
      for (const auto& [id, inode] : shard.inodes) inodes.push_back(inode);
    }
    for (const InodePtr& inode : inodes) visit(inode);
  }
}

void InodeTable::ForEachHeld(const std::function<void(const InodePtr&)>& visit) {
  for (Shard& shard : shards_) {
    std::vector<InodePtr> inodes;
    {
      MutexLock lock(shard.mutex);
      inodes.reserve(shard.held.size());
      for (const auto& [id, inode] : shard.held) inodes.push_back(inode);
    }
    for (const InodePtr& inode : inodes) visit(inode);
  }
}

}  // namespace cairnfs::fs
