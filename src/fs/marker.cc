#include "fs/marker.h"

#include <algorithm>
#include <cassert>

#include "fs/extent_map.h"

namespace cairnfs::fs {
namespace {

constexpr size_t kRecordsPerRead = 1024;

Error MarkStopped() { return MakeError(ErrorCode::kInterrupted, "the collection was stopped"); }

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
  std::string begin = "D";
  const std::string end = kv::PrefixEnd("D");
  for (bool more = true; more;) {
    if (context.Expired()) return MarkStopped();
    CAIRNFS_ASSIGN_OR_RETURN(kv::KvRange range, kv.Range(context, begin, end, kRecordsPerRead));
    for (const kv::KvEntry& entry : range.entries) {
      auto record = meta::FileRecord::Decode(entry.value);
      if (!record.ok()) return record.error().WithContext("record of a file");
      const Status file_marked = MarkFile(context, *record, chunks, mark);
      if (!file_marked.ok() && file_marked.error().code == ErrorCode::kInterrupted) return file_marked;
      if (!file_marked.ok()) {
        // Replaced and collected pages mean that the record changed under the mark: read it again.
        CAIRNFS_ASSIGN_OR_RETURN(auto again, kv.Get(context, entry.key));
        if (again && again->revision == entry.revision) {
          const InodeId inode = meta::InodeOfKey(entry.key).value_or(InodeId{0});
          const std::string what = "the recipe of inode " + std::to_string(inode.value);
          const ErrorCode code = file_marked.error().code;
          const bool is_of_file = code != ErrorCode::kExhausted && code != ErrorCode::kUnavailable;
          if (!is_of_file) return file_marked.error().WithContext(what);
          return file_marked.error().WithContext(what +
                                                 " cannot be read, so nothing is known to be free: find the file with "
                                                 "cairnfs check, restore or remove it");
        }
        if (again) {
          CAIRNFS_ASSIGN_OR_RETURN(meta::FileRecord newer, meta::FileRecord::Decode(again->value));
          CAIRNFS_RETURN_IF_ERROR(MarkFile(context, newer, chunks, mark));
        }
      }
      marked++;
    }
    more = range.more && !range.entries.empty();
    if (more) begin = range.entries.back().key + '\0';
  }
  return {};
}

}  // namespace cairnfs::fs
