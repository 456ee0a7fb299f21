#include "fs/marker.h"

#include <algorithm>
#include <cassert>
#include <string>

#include "base/coding.h"
#include "cluster/held_dumps.h"
#include "fs/extent_map.h"
#include "fs/scan.h"

namespace cairnfs::fs {
namespace {

Error MarkStopped() { return MakeError(ErrorCode::kInterrupted, "the collection was stopped"); }

// What may be done where a record names a page that cannot be read.
std::string WayOut(const kv::KvEntry& entry) {
  if (cluster::IsHeldRecord(entry.key)) {
    return "give up the dump that holds it with cairnfs metadata release " +
           std::to_string(cluster::HoldOfKey(entry.key));
  }
  return "find the file with cairnfs check, restore or remove it";
}

Status MarkEntry(const Context& context, kv::KvStore& kv, store::ChunkStore& chunks, const kv::KvEntry& entry,
                 const Marking& mark) {
  auto record = meta::FileRecord::Decode(entry.value);
  if (!record.ok()) return record.error().WithContext("record of a file");
  const Status marked = MarkFile(context, *record, chunks, mark);
  if (marked.ok() || marked.error().code == ErrorCode::kInterrupted) return marked;
  // Replaced and collected pages mean that the record changed under the mark: read it again.
  CAIRNFS_ASSIGN_OR_RETURN(const auto again, kv.Get(context, entry.key));
  if (!again) return {};
  if (again->revision != entry.revision) {
    CAIRNFS_ASSIGN_OR_RETURN(const meta::FileRecord newer, meta::FileRecord::Decode(again->value));
    return MarkFile(context, newer, chunks, mark);
  }
  const uint64_t inode = Decoder(std::string_view(entry.key).substr(entry.key.size() - 8)).BigEndianU64();
  const std::string what = "the recipe of inode " + std::to_string(inode);
  const ErrorCode code = marked.error().code;
  const bool is_of_file = code != ErrorCode::kExhausted && code != ErrorCode::kUnavailable;
  if (!is_of_file) return marked.error().WithContext(what);
  return marked.error().WithContext(what + " cannot be read, so nothing is known to be free: " + WayOut(entry));
}

}  // namespace

void LiveSet::Add(const Digest& digest) {
  prefixes_.push_back(DigestHash()(digest));
  if (prefixes_.size() >= compact_at_) Compact();
}

void LiveSet::Compact() {
  std::sort(prefixes_.begin(), prefixes_.end());
  prefixes_.erase(std::unique(prefixes_.begin(), prefixes_.end()), prefixes_.end());
  compact_at_ = std::max(compact_at_, prefixes_.size() * 2);
}

void LiveSet::Seal() {
  Compact();
  is_sealed_ = true;
}

std::optional<size_t> LiveSet::PlaceOf(const Digest& digest) const {
  assert(is_sealed_);
  const uint64_t prefix = DigestHash()(digest);
  const auto found = std::lower_bound(prefixes_.begin(), prefixes_.end(), prefix);
  if (found == prefixes_.end() || *found != prefix) return std::nullopt;
  return static_cast<size_t>(found - prefixes_.begin());
}

void CandidateSet::Seal() {
  given_.Seal();
  is_marked_.resize(given_.size());
}

void CandidateSet::Mark(const Digest& digest) {
  if (const auto place = given_.PlaceOf(digest)) is_marked_[*place] = true;
}

bool CandidateSet::Contains(const Digest& digest) const {
  const auto place = given_.PlaceOf(digest);
  return !place || is_marked_[*place];
}

Status MarkFile(const Context& context, const meta::FileRecord& record, store::ChunkStore& chunks,
                const Marking& mark) {
  CAIRNFS_ASSIGN_OR_RETURN(Recipe recipe, Recipe::Decode(record.recipe));
  for (const Extent& extent : recipe.extents) mark(extent.digest);
  for (const PageRef& inner : recipe.inner) {
    mark(inner.digest);
    CAIRNFS_ASSIGN_OR_RETURN(std::string text, store::GetText(chunks, inner.digest));
    CAIRNFS_ASSIGN_OR_RETURN(std::vector<PageRef> leaves, DecodePageRefs(text));
    for (const PageRef& leaf : leaves) {
      if (context.Expired()) return MarkStopped();
      mark(leaf.digest);
      CAIRNFS_ASSIGN_OR_RETURN(std::string page, store::GetText(chunks, leaf.digest));
      CAIRNFS_ASSIGN_OR_RETURN(std::vector<Extent> extents, DecodeExtents(page, leaf.index * kLeafBytes, kLeafBytes));
      for (const Extent& extent : extents) mark(extent.digest);
    }
  }
  return {};
}

Status MarkAll(const Context& context, kv::KvStore& kv, store::ChunkStore& chunks, const Marking& mark,
               std::atomic<uint64_t>& marked) {
  for (const char* prefix : {"D", cluster::kHeldPrefix.data()}) {
    Status entry_marked;
    const Status scanned = ScanPrefix(context, kv, prefix, [&](const kv::KvEntry& entry) {
      if (cluster::IsHold(entry.key)) return true;
      entry_marked = MarkEntry(context, kv, chunks, entry, mark);
      if (entry_marked.ok()) marked++;
      return entry_marked.ok();
    });
    if (!scanned.ok() && scanned.error().code == ErrorCode::kInterrupted) return MarkStopped();
    CAIRNFS_RETURN_IF_ERROR(scanned);
    CAIRNFS_RETURN_IF_ERROR(entry_marked);
  }
  return {};
}

Result<store::LiveTotals> CountMarked(const Context& context, store::LocalChunkStore& chunks,
                                      const std::function<Status()>& mark, const store::LiveTest& live) {
  // Small chunks that no sync has indexed yet (SyncWithEngine) would be passed over.
  static_cast<void>(chunks.Sync().ok());
  chunks.BeginCollection();
  const Status marked = mark();
  if (marked.ok()) return chunks.CountLive(context, live);
  chunks.AbortCollection();
  return marked.error();
}

}  // namespace cairnfs::fs
