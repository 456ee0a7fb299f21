// A collection's second half: deletes the index entries of chunks that nothing refers to, then has the segments that
// hold too much waste compacted.
#include <algorithm>
#include <cassert>
#include <unordered_set>

#include "base/failpoint.h"
#include "base/log.h"
#include "store/compaction.h"
#include "store/store_impl.h"

namespace cairnfs::store {
namespace {

Failpoint sweep_batch("store.sweep_batch", Failpoint::Kind::kKill);

constexpr size_t kSweptEntriesPerBatch = 512;
// A segment with less waste than this is left alone, unless many such add up to the second figure.
constexpr uint64_t kWasteBytesMin = 64 * kKiB;
constexpr uint64_t kSmallWasteBytesMax = kMiB;

}  // namespace

Status LocalChunkStore::Impl::Sweep(const Context& context, const LiveTest& live, const SweepOptions& options,
                                    SweepProgress& progress) {
  assert(index_.IsRecording());
  SegmentUses uses;
  Status status = DeleteDead(context, live, options.companion_key, progress, &uses);
  index_.EndRecording();
  CAIRNFS_RETURN_IF_ERROR(status);
  SealOpenIfWasteful(uses, options.dead_share_min);
  // What the segments to be freed were named by must be in the engine.
  CAIRNFS_RETURN_IF_ERROR(Sync());
  Compaction compaction({.index = index_,
                         .segments = segments_,
                         .writer = writer_,
                         .sync = [this] { return Sync(); },
                         .note_damaged = [this](const Error& error) { Report(error); },
                         .batch_bytes = options_.segment_bytes},
                        {context, options, progress});
  Status compacted = compaction.Run(ChooseForCompaction(uses, options.dead_share_min), uses);
  AwaitMaintenance();  // so that the space is there when the collection says that it is done
  return compacted;
}

Status LocalChunkStore::Impl::DeleteDead(const Context& context, const LiveTest& live,
                                         const ChunkIndex::CompanionKey& companion_key, SweepProgress& progress,
                                         SegmentUses* uses) {
  CAIRNFS_RETURN_IF_ERROR(Sync());
  ChunkIndex::View view = index_.TakeView();
  progress.chunks_total = view.chunk_count;
  uint64_t seen_count = 0, seen_bytes = 0;
  bool is_one_view = true;
  std::string after;
  for (;;) {
    if (context.Expired()) return MakeError(ErrorCode::kInterrupted, "the collection was stopped");
    CAIRNFS_ASSIGN_OR_RETURN(auto entries, index_.ReadEntries(view.snapshot.get(), &after, kSweptEntriesPerBatch));
    if (entries.empty()) break;
    std::vector<ChunkIndex::Entry> candidates;
    for (const ChunkIndex::Entry& entry : entries) {
      ++seen_count;
      seen_bytes += entry.location.raw_bytes;
      if (!live(entry.digest)) candidates.push_back(entry);
    }
    auto tried = index_.DeleteUnused(candidates, companion_key);
    if (!tried.ok() && tried.error().code == ErrorCode::kNoSpace) {
      // While a snapshot lives, the engine cannot recover from a full disk, and this is what makes room there.
      view.snapshot.reset();
      tried = index_.DeleteUnused(candidates, companion_key);
      view = index_.TakeView();
      is_one_view = false;
    }
    CAIRNFS_ASSIGN_OR_RETURN(auto deleted, std::move(tried));
    sweep_batch.Pass();
    std::unordered_set<Digest, DigestHash> gone;
    for (const ChunkIndex::Entry& entry : deleted) {
      gone.insert(entry.digest);
      progress.bytes_freed += entry.location.raw_bytes;
    }
    progress.chunks_freed += deleted.size();
    progress.chunks_seen += entries.size();
    for (const ChunkIndex::Entry& entry : entries) {
      if (gone.contains(entry.digest)) continue;
      SegmentUse& use = (*uses)[entry.location.segment.value];
      use.live_bytes += RecordBytes(entry.location.stored_bytes);
      ++use.live_count;
    }
  }
  if (is_one_view && (seen_count != view.chunk_count || seen_bytes != view.unique_bytes)) {
    spdlog::warn("the chunk index counted {} chunks of {} bytes and holds {} of {}; corrected", view.chunk_count,
                 view.unique_bytes, seen_count, seen_bytes);
    index_.CorrectCounters(static_cast<int64_t>(seen_count - view.chunk_count),
                           static_cast<int64_t>(seen_bytes - view.unique_bytes));
  }
  return {};
}

// Chunks that are put meanwhile are recorded, and so count as in use, whether or not the loop meets them.
Result<LiveTotals> LocalChunkStore::Impl::CountLive(const Context& context, const LiveTest& live) {
  assert(index_.IsRecording());
  struct EndRecording {
    ChunkIndex& index;
    ~EndRecording() { index.EndRecording(); }
  } end_recording{index_};
  LiveTotals totals;
  std::string after;
  for (;;) {
    if (context.Expired()) return MakeError(ErrorCode::kInterrupted, "the count was stopped");
    CAIRNFS_ASSIGN_OR_RETURN(auto entries, index_.ReadEntries(/*snapshot=*/nullptr, &after, kSweptEntriesPerBatch));
    if (entries.empty()) break;
    for (const ChunkIndex::Entry& entry : entries) {
      if (live(entry.digest) || index_.IsInUse(entry.digest)) continue;
      ++totals.unreferenced_chunks;
      totals.unreferenced_bytes += entry.location.raw_bytes;
    }
  }
  const uint64_t chunks = index_.chunk_count(), bytes = index_.unique_bytes();
  totals.live_chunks = chunks - std::min(chunks, totals.unreferenced_chunks);
  totals.live_bytes = bytes - std::min(bytes, totals.unreferenced_bytes);
  return totals;
}

void LocalChunkStore::Impl::SealOpenIfWasteful(const SegmentUses& uses, double dead_share_min) {
  SegmentPtr open = writer_.open_segment();
  if (!open || open->unindexed.load() > 0) return;
  uint64_t used = open->used_end.load();
  auto use = uses.find(open->header.id.value);
  uint64_t live = use == uses.end() ? 0 : use->second.live_bytes;
  uint64_t waste = used > live ? used - live : 0;
  if (waste >= kWasteBytesMin && IsWasteful(waste, used, dead_share_min)) writer_.SealOpen();
}

// `uses` is a little old and only guides the choice: the content of a chosen segment is looked up again.
std::vector<SegmentPtr> LocalChunkStore::Impl::ChooseForCompaction(const SegmentUses& uses, double dead_share_min) {
  std::vector<SegmentPtr> chosen, small;
  uint64_t small_waste = 0;
  uint64_t spare = space_.AvailableBytes() / 2;  // for moves that give no room
  for (const SegmentPtr& segment : segments_.All()) {
    // All its records must have their index entries in the engine: then the engine alone says what is live in it.
    if (!segment->sealed.load() || segment->unindexed.load() > 0) continue;
    auto use = uses.find(segment->header.id.value);
    uint64_t live = use == uses.end() ? 0 : use->second.live_bytes;
    uint64_t taken = segment->used_end.load();  // the file's unused end goes by itself
    uint64_t waste = taken > live ? taken - live : 0;
    if (live > 0 && segment->header_damaged && live <= spare) {
      spare -= live;
      chosen.push_back(segment);
      continue;
    }
    if (live > 0 && !IsWasteful(waste, taken, dead_share_min)) continue;
    if (live > 0 && waste < kWasteBytesMin) {
      small.push_back(segment);
      small_waste += waste;
    } else {
      chosen.push_back(segment);
    }
  }
  if (small_waste > kSmallWasteBytesMax) chosen.insert(chosen.end(), small.begin(), small.end());
  return chosen;
}

}  // namespace cairnfs::store
