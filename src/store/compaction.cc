#include "store/compaction.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <optional>

#include "base/failpoint.h"
#include "chunking/digest.h"
#include "store/segment_scanner.h"

namespace cairnfs::store {
namespace {

Failpoint compaction_copied("store.compaction_copied", Failpoint::Kind::kKill);
Failpoint compaction_index_updated("store.compaction_index_updated", Failpoint::Kind::kKill);
Failpoint compaction_sync("store.compaction_sync", Failpoint::Kind::kSkippable);
Failpoint compaction_index_sync("store.compaction_index_sync", Failpoint::Kind::kSkippable);

constexpr uint64_t kEntriesPerGroupMax = 1'000'000;  // about 80 MB of memory
constexpr size_t kReadBytesMax = 8 * kMiB;
constexpr uint64_t kReadGapMax = 64 * kKiB;  // dead bytes that are read along rather than skipped

// The end of the first of `entries` and of those that lie close behind it. REQUIRES: they are in the order of their
// places.
uint64_t FindExtentEnd(std::span<const ChunkIndex::Entry> entries) {
  uint64_t extent_end = 0;
  for (const ChunkIndex::Entry& entry : entries) {
    const uint64_t end = entry.location.data_offset() + entry.location.stored_bytes;
    assert(end >= extent_end);
    if (extent_end != 0 && entry.location.offset > extent_end + kReadGapMax) break;
    if (extent_end != 0 && end - entries[0].location.offset > kReadBytesMax - 2 * kPageBytes) break;
    extent_end = std::max(extent_end, end);
  }
  return extent_end;
}

}  // namespace

bool IsWasteful(uint64_t waste_bytes, uint64_t total_bytes, double dead_share_min) {
  return static_cast<double>(waste_bytes) > dead_share_min * static_cast<double>(total_bytes);
}

Status Compaction::Run(std::vector<SegmentPtr> chosen, SegmentUses uses) {
  // Segments without live bytes come first: they give room without taking any, and on a full disk the others need it.
  auto live_bytes = [&](const SegmentPtr& segment) { return uses[segment->header.id.value].live_bytes; };
  std::stable_sort(chosen.begin(), chosen.end(),
                   [&](const SegmentPtr& a, const SegmentPtr& b) { return live_bytes(a) < live_bytes(b); });
  size_t begin = 0;
  while (begin < chosen.size()) {
    uint64_t entries = 0;
    size_t end = begin;
    while (end < chosen.size() && (end == begin || entries < kEntriesPerGroupMax)) {
      entries += uses[chosen[end++]->header.id.value].live_count;
    }
    const std::span group = std::span(chosen).subspan(begin, end - begin);
    CAIRNFS_ASSIGN_OR_RETURN(NamedSegments segments, CollectEntries(at_.index, group));
    for (size_t i = begin; i < end; ++i) chosen[i] = nullptr;  // or the files could not be freed
    std::erase_if(segments, [this](const NamedSegment& segment) { return !IsWorthMoving(segment); });
    CAIRNFS_RETURN_IF_ERROR(MoveAll(segments));
    begin = end;
  }
  return {};
}

Result<NamedSegments> CollectEntries(ChunkIndex& index, std::span<const SegmentPtr> segments) {
  NamedSegments named;
  std::map<uint64_t, size_t> by_id;
  for (const SegmentPtr& segment : segments) {
    by_id.emplace(segment->header.id.value, named.size());
    named.push_back({segment, {}});
  }
  ChunkIndex::View view = index.TakeView();
  std::string after;
  for (;;) {
    CAIRNFS_ASSIGN_OR_RETURN(auto entries, index.ReadEntries(view.snapshot.get(), &after, 4096));
    if (entries.empty()) break;
    for (const ChunkIndex::Entry& entry : entries) {
      auto found = by_id.find(entry.location.segment.value);
      if (found != by_id.end()) named[found->second].entries.push_back(entry);
    }
  }
  for (NamedSegment& segment : named) {
    std::sort(segment.entries.begin(), segment.entries.end(),
              [](const auto& a, const auto& b) { return a.location.offset < b.location.offset; });
  }
  return named;
}

// `uses` says nothing of a segment that was filled since the sweep began: all in it may be live.
bool Compaction::IsWorthMoving(const NamedSegment& segment) const {
  if (segment.entries.empty() || segment.segment->header_damaged) return true;
  uint64_t live = 0;
  for (const ChunkIndex::Entry& entry : segment.entries) live += RecordBytes(entry.location.stored_bytes);
  const uint64_t taken = segment.segment->used_end.load();
  return IsWasteful(taken - std::min(taken, live), taken, order_.options.dead_share_min);
}

Status Compaction::MoveAll(NamedSegments& segments) {
  Status status;
  for (NamedSegment& segment : segments) {
    if (order_.context.Expired()) {
      status = MakeError(ErrorCode::kInterrupted, "the collection was stopped");
      break;
    }
    if (!segment.entries.empty() && moves_.empty() && !emptied_.empty()) {
      CAIRNFS_RETURN_IF_ERROR(FinishBatch());  // gives room before any is taken
    }
    status = Copy(segment);
    if (!status.ok() && status.error().code == ErrorCode::kNoSpace && !emptied_.empty()) {
      CAIRNFS_RETURN_IF_ERROR(FinishBatch());
      std::erase_if(segment.entries, [this](const ChunkIndex::Entry& entry) { return !StillNamed(entry); });
      status = Copy(segment);
    }
    if (!status.ok() && status.error().code == ErrorCode::kCorrupt) {
      at_.note_damaged(status.error());  // the rest goes on
      status = Status();
    }
    segment = NamedSegment();
    if (!status.ok()) break;
    if (bytes_ >= at_.batch_bytes) CAIRNFS_RETURN_IF_ERROR(FinishBatch());
  }
  CAIRNFS_RETURN_IF_ERROR(FinishBatch());
  return status;
}

// kCorrupt: some of it is damaged or cannot be read. The sound chunks move, the others stay where they are. kExhausted:
// its file cannot be opened now, which says nothing about the chunks.
Status Compaction::Copy(const NamedSegment& segment) {
  auto file = at_.segments.FileOf(*segment.segment);
  if (!file.ok() && file.error().code == ErrorCode::kExhausted) return file.error();
  if (!file.ok()) return MakeError(ErrorCode::kCorrupt, file.error().message);
  FileWindow window(**file, segment.entries.empty() ? kPageBytes : kReadBytesMax);
  const auto& entries = segment.entries;
  uint64_t extent_end = 0;
  std::optional<Error> damage;
  for (size_t i = 0; i < entries.size(); ++i) {
    const Location& location = entries[i].location;
    uint64_t end = location.data_offset() + location.stored_bytes;
    if (end > extent_end) extent_end = FindExtentEnd(std::span(entries).subspan(i));
    auto record = window.Load(location.offset, end - location.offset, extent_end);
    Status copied = CopyChunk(entries[i], record);
    if (copied.ok()) continue;
    if (copied.error().code != ErrorCode::kCorrupt) return copied;
    if (!StillNamed(entries[i])) continue;  // it was put again meanwhile
    at_.index.NoteDamaged(entries[i].digest, location);
    damage = copied.error().WithContext(segment.segment->name());
  }
  if (damage) return *damage;
  emptied_.push_back(segment.segment->header.id);
  if (!entries.empty()) ++order_.progress.segments_compacted;
  return {};
}

bool Compaction::StillNamed(const ChunkIndex::Entry& entry) {
  auto found = at_.index.FindInEngine(entry.digest);
  return !found.ok() || (found->has_value() && **found == entry.location);
}

Status Compaction::CopyChunk(const ChunkIndex::Entry& entry, const Result<ByteSpan>& record) {
  const Location& from = entry.location;
  const std::string where = "chunk " + entry.digest.ToHex() + " at offset " + std::to_string(from.offset) + ": ";
  if (!record.ok()) return MakeError(ErrorCode::kCorrupt, where + record.error().message);
  ByteSpan data = record->subspan(std::min(kRecordHeaderBytes, record->size()));
  if (data.size() != from.stored_bytes || !chunking::Names(entry.digest, chunking::ComputeDigest(data))) {
    return MakeError(ErrorCode::kCorrupt, where + "the bytes do not match the digest");
  }
  io::Slice slice{io::BufferRef(), data.data(), data.size()};
  CAIRNFS_ASSIGN_OR_RETURN(auto appended, at_.writer.Append(entry.digest, std::span(&slice, 1), data.size(),
                                                            SegmentWriter::Purpose::kCompaction));
  moves_.push_back({entry.digest, from, appended.location, std::move(appended.segment)});
  bytes_ += data.size();
  order_.progress.bytes_moved += data.size();
  if (order_.options.bytes_per_second_max > 0) {
    auto now = Clock::Now();
    auto share = std::chrono::duration<double>(static_cast<double>(data.size()) /
                                               static_cast<double>(order_.options.bytes_per_second_max));
    throttled_until_ = std::max(throttled_until_, now - std::chrono::milliseconds(20)) +
                       std::chrono::duration_cast<Clock::duration>(share);
    static_cast<void>(order_.context.Sleep(throttled_until_ - Clock::Now()));  // it looks for a stop itself
  }
  return {};
}

Status Compaction::FinishBatch() {
  if (!moves_.empty()) {
    compaction_copied.Pass();
    Status status = compaction_sync.PassOrSkip() ? Status() : at_.sync();
    if (status.ok()) status = at_.index.MoveEntries(moves_, kv::SyncedIf(emptied_.empty()));
    // Copies whose entry did not move are dead from the start.
    for (const ChunkIndex::Move& move : moves_) move.target->unindexed.fetch_sub(1);
    moves_.clear();
    bytes_ = 0;
    CAIRNFS_RETURN_IF_ERROR(status);
  }
  if (!emptied_.empty()) {
    const bool is_skipped = compaction_index_sync.PassOrSkip();
    CAIRNFS_RETURN_IF_ERROR(at_.index.ForgetSegments(emptied_, kv::SyncedIf(!is_skipped)));
    compaction_index_updated.Pass();
    for (SegmentId id : emptied_) at_.segments.Free(id);
    order_.progress.segments_freed += emptied_.size();
  }
  emptied_.clear();
  return {};
}

}  // namespace cairnfs::store
