// Compaction: copies what is live in a segment to the open one, points the index there, frees the segment.
//
// The order that keeps a crash harmless: the copies are synced, then the index entries change, then the engine is
// synced, then the files are freed. Until the last step both places hold the chunk.
#include <algorithm>
#include <cassert>
#include <map>
#include <thread>

#include "base/clock.h"
#include "base/context.h"
#include "base/failpoint.h"
#include "chunking/digest.h"
#include "store/segment_scanner.h"
#include "store/store_impl.h"

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

// Copies whose index entries still name the old place, and segments that are empty once these entries change.
struct LocalChunkStore::Impl::Batch {
  std::vector<ChunkIndex::Move> moves;
  std::vector<SegmentId> emptied;
  uint64_t bytes = 0;
  uint64_t bytes_max = 0;
  Clock::time_point throttled_until = Clock::Now();
};

Status LocalChunkStore::Impl::CompactAll(const Context& context, std::vector<SegmentPtr> chosen, SegmentUses& uses,
                                         const SweepOptions& options, SweepProgress& progress) {
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
    CAIRNFS_ASSIGN_OR_RETURN(Victims victims, CollectEntries(std::span(chosen).subspan(begin, end - begin)));
    for (size_t i = begin; i < end; ++i) chosen[i] = nullptr;  // or the files could not be freed
    std::erase_if(victims, [&](const Victim& victim) { return !IsWorthMoving(victim, options.dead_share_min); });
    CAIRNFS_RETURN_IF_ERROR(CompactGroup(context, victims, options, progress));
    begin = end;
  }
  return {};
}

Result<LocalChunkStore::Impl::Victims> LocalChunkStore::Impl::CollectEntries(std::span<const SegmentPtr> segments) {
  Victims victims;
  std::map<uint64_t, size_t> by_id;
  for (const SegmentPtr& segment : segments) {
    by_id.emplace(segment->header.id.value, victims.size());
    victims.push_back({segment, {}});
  }
  ChunkIndex::View view = index_.TakeView();
  std::string after;
  for (;;) {
    CAIRNFS_ASSIGN_OR_RETURN(auto entries, index_.ReadEntries(view.snapshot.get(), &after, 4096));
    if (entries.empty()) break;
    for (const ChunkIndex::Entry& entry : entries) {
      auto found = by_id.find(entry.location.segment.value);
      if (found != by_id.end()) victims[found->second].entries.push_back(entry);
    }
  }
  for (Victim& victim : victims) {
    std::sort(victim.entries.begin(), victim.entries.end(),
              [](const auto& a, const auto& b) { return a.location.offset < b.location.offset; });
  }
  return victims;
}

// `uses` says nothing of a segment that was filled since the sweep began: all in it may be live.
bool LocalChunkStore::Impl::IsWorthMoving(const Victim& victim, double dead_share_min) {
  if (victim.entries.empty() || victim.segment->header_damaged) return true;
  uint64_t live = 0;
  for (const ChunkIndex::Entry& entry : victim.entries) live += RecordBytes(entry.location.stored_bytes);
  const uint64_t taken = victim.segment->used_end.load();
  return IsWasteful(taken - std::min(taken, live), taken, dead_share_min);
}

Status LocalChunkStore::Impl::CompactGroup(const Context& context, Victims& victims, const SweepOptions& options,
                                           SweepProgress& progress) {
  Batch batch;
  batch.bytes_max = options_.segment_bytes;
  Status status;
  for (Victim& victim : victims) {
    if (context.Expired()) {
      status = MakeError(ErrorCode::kInterrupted, "the collection was stopped");
      break;
    }
    if (!victim.entries.empty() && batch.moves.empty() && !batch.emptied.empty()) {
      CAIRNFS_RETURN_IF_ERROR(FinishBatch(batch, progress));  // gives room before any is taken
    }
    status = CopyVictim(context, victim, options, progress, batch);
    if (!status.ok() && status.error().code == ErrorCode::kNoSpace && !batch.emptied.empty()) {
      CAIRNFS_RETURN_IF_ERROR(FinishBatch(batch, progress));
      std::erase_if(victim.entries, [this](const ChunkIndex::Entry& entry) { return !StillNamed(entry); });
      status = CopyVictim(context, victim, options, progress, batch);
    }
    if (!status.ok() && status.error().code == ErrorCode::kCorrupt) {
      Report(status.error());  // the segment stays as it is; the rest goes on
      status = Status();
    }
    victim = Victim();
    if (!status.ok()) break;
    if (batch.bytes >= batch.bytes_max) CAIRNFS_RETURN_IF_ERROR(FinishBatch(batch, progress));
  }
  CAIRNFS_RETURN_IF_ERROR(FinishBatch(batch, progress));
  return status;
}

// kCorrupt: some of it is damaged or cannot be read. The sound chunks move, the others stay where they are. kExhausted:
// its file cannot be opened now, which says nothing about the chunks.
Status LocalChunkStore::Impl::CopyVictim(const Context& context, Victim& victim, const SweepOptions& options,
                                         SweepProgress& progress, Batch& batch) {
  auto file = segments_.FileOf(*victim.segment);
  if (!file.ok() && file.error().code == ErrorCode::kExhausted) return file.error();
  if (!file.ok()) return MakeError(ErrorCode::kCorrupt, file.error().message);
  FileWindow window(**file, victim.entries.empty() ? kPageBytes : kReadBytesMax);
  const auto& entries = victim.entries;
  uint64_t extent_end = 0;
  std::optional<Error> damage;
  for (size_t i = 0; i < entries.size(); ++i) {
    const Location& location = entries[i].location;
    uint64_t end = location.data_offset() + location.stored_bytes;
    if (end > extent_end) extent_end = FindExtentEnd(std::span(entries).subspan(i));
    auto record = window.Load(location.offset, end - location.offset, extent_end);
    Status copied = CopyChunk(context, entries[i], record, options, progress, batch);
    if (copied.ok()) continue;
    if (copied.error().code != ErrorCode::kCorrupt) return copied;
    if (!StillNamed(entries[i])) continue;  // it was put again meanwhile
    index_.NoteDamaged(entries[i].digest, location);
    damage = copied.error().WithContext(victim.segment->name());
  }
  if (damage) return *damage;
  batch.emptied.push_back(victim.segment->header.id);
  if (!entries.empty()) ++progress.segments_compacted;
  return {};
}

bool LocalChunkStore::Impl::StillNamed(const ChunkIndex::Entry& entry) {
  auto found = index_.FindInEngine(entry.digest);
  return !found.ok() || (found->has_value() && **found == entry.location);
}

Status LocalChunkStore::Impl::CopyChunk(const Context& context, const ChunkIndex::Entry& entry,
                                        const Result<ByteSpan>& record, const SweepOptions& options,
                                        SweepProgress& progress, Batch& batch) {
  const Location& from = entry.location;
  const std::string where = "chunk " + entry.digest.ToHex() + " at offset " + std::to_string(from.offset) + ": ";
  if (!record.ok()) return MakeError(ErrorCode::kCorrupt, where + record.error().message);
  ByteSpan data = record->subspan(std::min(kRecordHeaderBytes, record->size()));
  if (data.size() != from.stored_bytes || !chunking::Names(entry.digest, chunking::ComputeDigest(data))) {
    return MakeError(ErrorCode::kCorrupt, where + "the bytes do not match the digest");
  }
  io::Slice slice{io::BufferRef(), data.data(), data.size()};
  CAIRNFS_ASSIGN_OR_RETURN(auto appended, writer_.Append(entry.digest, std::span(&slice, 1), data.size(),
                                                         SegmentWriter::Purpose::kCompaction));
  batch.moves.push_back({entry.digest, from, appended.location, std::move(appended.segment)});
  batch.bytes += data.size();
  progress.bytes_moved += data.size();
  if (options.bytes_per_second_max > 0) {
    auto now = Clock::Now();
    auto share = std::chrono::duration<double>(static_cast<double>(data.size()) /
                                               static_cast<double>(options.bytes_per_second_max));
    batch.throttled_until = std::max(batch.throttled_until, now - std::chrono::milliseconds(20)) +
                            std::chrono::duration_cast<Clock::duration>(share);
    static_cast<void>(context.Sleep(batch.throttled_until - Clock::Now()));  // it looks for a stop itself
  }
  return {};
}

Status LocalChunkStore::Impl::FinishBatch(Batch& batch, SweepProgress& progress) {
  if (!batch.moves.empty()) {
    compaction_copied.Pass();
    Status status = compaction_sync.PassOrSkip() ? Status() : Sync();
    if (status.ok()) status = index_.MoveEntries(batch.moves, kv::SyncedIf(batch.emptied.empty()));
    // Copies whose entry did not move are dead from the start.
    for (const ChunkIndex::Move& move : batch.moves) move.target->unindexed.fetch_sub(1);
    batch.moves.clear();
    batch.bytes = 0;
    CAIRNFS_RETURN_IF_ERROR(status);
  }
  if (!batch.emptied.empty()) {
    const bool is_skipped = compaction_index_sync.PassOrSkip();
    CAIRNFS_RETURN_IF_ERROR(index_.ForgetSegments(batch.emptied, kv::SyncedIf(!is_skipped)));
    compaction_index_updated.Pass();
    for (SegmentId id : batch.emptied) segments_.Free(id);
    progress.segments_freed += batch.emptied.size();
  }
  batch.emptied.clear();
  return {};
}

}  // namespace cairnfs::store
