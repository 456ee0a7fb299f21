#include "fs/shared_content.h"

#include <algorithm>

#include "fs/inode.h"

namespace cairnfs::fs {

static bool TellsTheSame(const meta::PendingRecord& one, const meta::PendingRecord& other) {
  return one.ranges == other.ranges && one.size == other.size && one.times_are_set == other.times_are_set;
}

void SharedContent::Changes::Add(const Changes& more) {
  ranges.Add(more.ranges);
  size_min = std::max(size_min, more.size_min);
  size_is_set = size_is_set || more.size_is_set;
  times_are_set = times_are_set || more.times_are_set;
}

std::optional<LostBytes> LostBytes::Of(const meta::Pending& pending, bool lives) {
  const meta::PendingRecord& record = pending.record;
  if (lives && record.lost_session == 0) return std::nullopt;
  LostBytes bytes;
  bytes.node = pending.node;
  bytes.revision = pending.revision;
  bytes.session = lives ? record.lost_session : record.session;
  bytes.size = record.size;
  bytes.is_nothing = record.TellsOfNothing();
  for (const auto& range : record.lost) bytes.ranges.Add(range.begin, range.end);
  if (lives) return bytes;
  for (const auto& range : record.ranges) bytes.ranges.Add(range.begin, range.end);
  return bytes;
}

void LostBytes::AddTo(meta::PendingRecord& record) const {
  record.lost_session = session;
  record.lost = FewRanges(ranges);
}

meta::PendingRecord LostBytes::Record() const {
  meta::PendingRecord record;
  record.session = session;
  record.size = size;
  record.ranges = FewRanges(ranges);
  record.times_are_set = ranges.empty();  // else it would tell of nothing
  return record;
}

std::vector<PendingChange> SharedContent::PendingChanges(const std::string& self,
                                                         const std::optional<meta::PendingRecord>& pending) const {
  std::vector<PendingChange> changes;
  const bool ends_or_shrinks = pending_revision != 0 && !(pending && TellsTheSame(*pending, told));
  bool own_is_told = false;
  for (const LostBytes& bytes : lost) {
    const bool is_own = bytes.node == self && pending_revision != 0;  // then the key tells what is pending too
    PendingChange change{bytes.node, bytes.revision, bytes, is_own ? pending : std::nullopt};
    change.left->ranges.Remove(publishing.ranges);
    const bool is_written = !publishing.ranges.empty() || publishing.size_is_set;
    const bool is_same =
        !bytes.is_nothing && change.left->ranges == bytes.ranges && !(bytes.ranges.empty() && is_written);
    if (is_same && !(is_own && ends_or_shrinks)) continue;
    if (!is_same && change.left->ranges.empty()) change.left.reset();
    changes.push_back(std::move(change));
    own_is_told = own_is_told || is_own;
  }
  if (ends_or_shrinks && !own_is_told) changes.push_back({self, pending_revision, std::nullopt, pending});
  return changes;
}

void SharedContent::Apply(const std::string& self, const std::vector<PendingChange>& changes, uint64_t revision) {
  for (const PendingChange& change : changes) {
    if (change.node == self && pending_revision == change.revision) {
      pending_revision = change.pending ? revision : 0;
      told = change.pending.value_or(meta::PendingRecord());
    }
    auto bytes = std::find_if(lost.begin(), lost.end(), [&](const LostBytes& each) {
      return each.node == change.node && each.revision == change.revision;
    });
    if (bytes == lost.end()) continue;  // read again since
    if (change.left) {
      *bytes = *change.left;
      bytes->revision = revision;
    } else {
      lost.erase(bytes);
    }
  }
}

void SharedContent::NotePut(const std::string& self, uint64_t revision, const meta::PendingRecord& record) {
  if (revision < pending_revision) return;
  pending_revision = revision;
  told = record;
  for (LostBytes& bytes : lost) {
    if (bytes.node == self) bytes.revision = revision;
  }
}

const LostBytes* SharedContent::LostOf(const std::string& node) const {
  auto found = std::find_if(lost.begin(), lost.end(), [&](const LostBytes& bytes) { return bytes.node == node; });
  return found == lost.end() ? nullptr : &*found;
}

void SharedContent::EndPublishing() {
  publishing = {};
  publishing_chunks.clear();
  is_sent = is_unanswered = false;
}

void AddPendingChange(kv::Transaction& transaction, InodeId inode, const PendingChange& change) {
  const std::string key = meta::PendingKey(inode, change.node);
  transaction.IfRevision(key, change.revision);
  if (change.pending) {
    meta::PendingRecord record = *change.pending;
    if (change.left) change.left->AddTo(record);
    transaction.Put(key, record.Encode());
  } else if (change.left) {
    transaction.Put(key, change.left->Record().Encode());
  } else {
    transaction.Delete(key);
  }
}

// Where bytes lie that are in no record, and not in the one that is about to be published.
static RangeSet UnsentRanges(const Content& content) {
  RangeSet ranges(SIZE_MAX);
  auto add = [&](uint64_t begin, uint64_t end) { ranges.Add(begin, end); };
  ranges.Add(content.shared->own.ranges);
  for (const auto& [start, run] : content.overlay.runs()) add(start + run.stored, start + run.length);
  // Without what an earlier chunk brings, or has brought.
  for (const auto& [id, chunk] : content.flying) add(chunk->offset + chunk->stored_before, chunk->offset + chunk->size);
  for (const auto& range : content.lost) add(range.begin, range.end);
  return ranges;
}

std::vector<meta::PendingRecord::Range> UnpublishedRanges(const Content& content) {
  RangeSet ranges = UnsentRanges(content);
  ranges.Add(content.shared->publishing.ranges);
  return FewRanges(ranges);
}

std::optional<meta::PendingRecord> StaysPending(const Content& content, uint64_t published_size) {
  const SharedContent& shared = *content.shared;
  if (shared.pending_revision == 0) return std::nullopt;
  meta::PendingRecord record = shared.told;
  RangeSet before(SIZE_MAX), ranges = UnsentRanges(content);
  for (const auto& range : record.ranges) before.Add(range.begin, range.end);
  // Not what was accepted since, and is not closed.
  before.ForEachGap(0, kFileSizeMax, [&](uint64_t begin, uint64_t end) { ranges.Remove(begin, end); });
  record.ranges = FewRanges(ranges);
  record.size = record.size <= published_size ? 0 : std::min(record.size, shared.own.size_min);
  record.times_are_set = record.times_are_set && shared.own.times_are_set;
  record.lost_session = 0;
  record.lost.clear();
  if (record.TellsOfNothing()) return std::nullopt;
  return record;
}

std::vector<meta::PendingRecord::Range> FewRanges(const RangeSet& ranges) {
  constexpr size_t kMax = meta::PendingRecord::kRangesMax;
  std::vector<meta::PendingRecord::Range> all;
  ranges.ForEach([&](uint64_t begin, uint64_t end) { all.push_back({begin, end}); });
  if (all.size() <= kMax) return all;
  // The widest gaps stay.
  std::vector<size_t> after(all.size() - 1);  // gap i lies after range i
  for (size_t i = 0; i < after.size(); i++) after[i] = i;
  std::nth_element(after.begin(), after.begin() + (kMax - 1), after.end(),
                   [&](size_t a, size_t b) { return all[a + 1].begin - all[a].end > all[b + 1].begin - all[b].end; });
  after.resize(kMax - 1);
  std::sort(after.begin(), after.end());
  std::vector<meta::PendingRecord::Range> few;
  size_t first = 0;
  for (size_t last : after) {
    few.push_back({all[first].begin, all[last].end});
    first = last + 1;
  }
  few.push_back({all[first].begin, all.back().end});
  return few;
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

bool CoversAll(const RangeSet& ranges) {
  bool covers = true;
  ranges.ForEachGap(0, kFileSizeMax, [&](uint64_t, uint64_t) { covers = false; });
  return covers;
}

}  // namespace

Status Rebase(Content& content, const std::optional<meta::FileRecord>& record, uint64_t revision,
              store::ChunkStore& chunks) {
  SharedContent& shared = *content.shared;
  SharedContent::Changes ours = shared.publishing;
  ours.Add(shared.own);
  ExtentMap merged;
  // A recipe of which nothing stays need not be readable.
  if (record && !CoversAll(ours.ranges)) CAIRNFS_RETURN_IF_ERROR(LoadExtents(*record, merged, chunks));
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
  shared.base_revision = revision;
  return {};
}

Status LoadExtents(const meta::FileRecord& record, ExtentMap& extents, store::ChunkStore& chunks) {
  CAIRNFS_ASSIGN_OR_RETURN(Recipe recipe, Recipe::Decode(record.recipe));
  CAIRNFS_RETURN_IF_ERROR(extents.Load(recipe, chunks));
  // A record may name extents past its size, of bytes whose predecessors were not stored then.
  if (extents.extent_count() > 0) {
    CAIRNFS_RETURN_IF_ERROR(extents.EnsureLoaded(record.size, 1, chunks));
    extents.Replace(record.size, kFileSizeMax - record.size, nullptr);
  }
  return {};
}

}  // namespace cairnfs::fs
