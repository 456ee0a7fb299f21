#include "store/chunk_index.h"

#include <algorithm>

#include "base/log.h"

namespace cairnfs::store {
namespace {

constexpr size_t kEntriesPerBatch = 4096;

}  // namespace

Status ChunkIndex::Load() {
  CAIRNFS_ASSIGN_OR_RETURN(auto counters, engine_.Get(kCountersKey));
  MutexLock lock(write_mutex_);
  if (counters) {
    CAIRNFS_ASSIGN_OR_RETURN(counters_, DecodeCounters(*counters));
  }
  loaded_ = counters_;
  chunk_count_ = counters_.chunk_count;
  unique_bytes_ = counters_.unique_bytes;
  // Segment ids stay below 2^40, so few digests lie between the segments' keys.
  Status decoded;
  Status scanned = engine_.Scan(SegmentKey(SegmentId{0}), SegmentKey(SegmentId{uint64_t{1} << 40}), nullptr,
                                [&](std::string_view key, std::string_view value) {
                                  auto id = ParseSegmentKey(key);
                                  if (!id) return true;
                                  auto generation = DecodeGeneration(value);
                                  if (!generation.ok()) {
                                    decoded = generation.error();
                                    return false;
                                  }
                                  loaded_segments_.emplace(id->value, *generation);
                                  return true;
                                });
  CAIRNFS_RETURN_IF_ERROR(scanned);
  CAIRNFS_RETURN_IF_ERROR(decoded);
  for (const auto& [id, generation] : loaded_segments_) named_segments_.insert(id);
  return {};
}

// --- putting -----------------------------------------------------------------------------------------------------

Result<ChunkIndex::Claim> ChunkIndex::ClaimForPut(const Digest& digest) {
  ChunkMarks& marks = MarksOf(digest);
  {
    MutexLock lock(marks.mutex);
    for (;;) {
      marks.WaitWhileDying(digest);
      auto found = marks.pending.find(digest);
      if (found == marks.pending.end()) break;
      ChunkMarks::Pending& pending = found->second;
      if (pending.putting) {
        marks.changed.Wait(marks.mutex);
        continue;
      }
      if (!marks.IsDamaged(digest, pending.location)) {
        marks.PinAndRecord(digest);
        return Claim::kKnown;
      }
      pending.putting = true;
      pending.replaced_bytes = pending.location.raw_bytes;
      return Claim::kMustStore;
    }
    marks.pending[digest].putting = true;
  }
  auto found = FindInEngine(digest);
  if (found.ok() && !found->has_value()) return Claim::kMustStore;
  // An entry that cannot be read is no reason to refuse the bytes: a new entry takes its place. The chunk may then be
  // counted twice, until a collection corrects that.
  const bool is_unreadable =
      !found.ok() && (found.error().code == ErrorCode::kCorrupt || found.error().code == ErrorCode::kIo);
  if (is_unreadable) {
    if (!unreadable_noted_.exchange(true)) {
      spdlog::error("chunks whose index entries cannot be read are stored anew; the first: {}", found.error().message);
    }
    return Claim::kMustStore;
  }
  MutexLock lock(marks.mutex);
  if (found.ok() && marks.IsDamaged(digest, **found)) {
    // The entry stays until that of the new copy takes its place. A pending chunk is never collected.
    marks.pending[digest].replaced_bytes = (*found)->raw_bytes;
    return Claim::kMustStore;
  }
  marks.pending.erase(digest);
  marks.changed.NotifyAll();
  if (!found.ok()) return found.error();
  marks.PinAndRecord(digest);
  return Claim::kKnown;
}

void ChunkIndex::Stored(UnindexedChunk chunk) {
  ChunkMarks& marks = MarksOf(chunk.digest);
  pending_bytes_.fetch_add(chunk.location.raw_bytes, std::memory_order_relaxed);
  MutexLock lock(marks.mutex);
  ChunkMarks::Pending& pending = marks.pending[chunk.digest];
  chunk.replaced_bytes = pending.replaced_bytes;
  chunk_count_.fetch_add(chunk.replaced_bytes ? 0 : 1, std::memory_order_relaxed);
  unique_bytes_.fetch_add(uint64_t{chunk.location.raw_bytes} - chunk.replaced_bytes.value_or(0),
                          std::memory_order_relaxed);
  pending = {.putting = false, .stored = true, .location = chunk.location, .replaced_bytes = std::nullopt};
  marks.damaged.erase(chunk.digest);
  marks.PinAndRecord(chunk.digest);
  {
    // Before anybody can learn that the chunk is known, because their sync must cover it.
    MutexLock unindexed_lock(unindexed_mutex_);
    unindexed_.push_back(std::move(chunk));
  }
  marks.changed.NotifyAll();
}

void ChunkIndex::Abandon(const Digest& digest) {
  ChunkMarks& marks = MarksOf(digest);
  MutexLock lock(marks.mutex);
  ChunkMarks::Pending& pending = marks.pending[digest];
  pending.putting = false;
  pending.replaced_bytes.reset();
  if (!pending.stored) marks.pending.erase(digest);
  marks.changed.NotifyAll();
}

void ChunkIndex::NoteDamaged(const Digest& digest, const Location& location) {
  ChunkMarks& marks = MarksOf(digest);
  MutexLock lock(marks.mutex);
  marks.NoteDamaged(digest, location);
}

bool ChunkIndex::IsKnownDamaged(const Digest& digest) {
  ChunkMarks& marks = MarksOf(digest);
  MutexLock lock(marks.mutex);
  return marks.damaged.contains(digest);
}

// --- looking up --------------------------------------------------------------------------------------------------

Result<std::optional<Location>> ChunkIndex::FindInEngine(const Digest& digest) {
  CAIRNFS_ASSIGN_OR_RETURN(auto value, engine_.Get(ChunkKey(digest)));
  if (!value) return std::optional<Location>{};
  auto location = DecodeLocation(*value);
  if (!location.ok()) return location.error().WithContext("chunk " + digest.ToHex());
  return std::optional<Location>{*location};
}

Result<std::optional<Location>> ChunkIndex::Find(const Digest& digest) {
  ChunkMarks& marks = MarksOf(digest);
  {
    MutexLock lock(marks.mutex);
    auto found = marks.pending.find(digest);
    if (found != marks.pending.end() && found->second.stored) return std::optional<Location>{found->second.location};
  }
  // A chunk is in the engine before it stops being pending.
  return FindInEngine(digest);
}

Result<bool> ChunkIndex::PinIfPresent(const Digest& digest) {
  ChunkMarks& marks = MarksOf(digest);
  {
    MutexLock lock(marks.mutex);
    marks.WaitWhileDying(digest);
    marks.PinAndRecord(digest);
  }
  auto found = Find(digest);
  if (found.ok() && found->has_value()) return true;
  Unpin(digest);
  if (!found.ok()) return found.error();
  return false;
}

void ChunkIndex::Unpin(const Digest& digest) {
  ChunkMarks& marks = MarksOf(digest);
  MutexLock lock(marks.mutex);
  marks.DropPin(digest);
}

Result<bool> ChunkIndex::Has(const Digest& digest) {
  ChunkMarks& marks = MarksOf(digest);
  {
    MutexLock lock(marks.mutex);
    marks.WaitWhileDying(digest);
    marks.Record(digest);
  }
  CAIRNFS_ASSIGN_OR_RETURN(auto found, Find(digest));
  return found.has_value();
}

// --- syncing -----------------------------------------------------------------------------------------------------

std::vector<UnindexedChunk> ChunkIndex::TakeUnindexed() {
  MutexLock lock(unindexed_mutex_);
  return std::exchange(unindexed_, {});
}

void ChunkIndex::PutBackUnindexed(std::vector<UnindexedChunk> chunks) {
  MutexLock lock(unindexed_mutex_);
  unindexed_.insert(unindexed_.begin(), std::make_move_iterator(chunks.begin()), std::make_move_iterator(chunks.end()));
}

void ChunkIndex::AddSegmentKey(const SegmentPtr& segment, std::vector<kv::EngineWrite>* writes,
                               std::vector<uint64_t>* added) {
  uint64_t id = segment->header.id.value;
  if (!named_segments_.insert(id).second) return;
  added->push_back(id);
  writes->push_back({SegmentKey(segment->header.id), EncodeGeneration(segment->header.generation)});
  // The segment may be gone, file and key, before any put is indexed. Its id must not be given again.
  counters_.next_segment_id = std::max(counters_.next_segment_id, id + 1);
}

Status ChunkIndex::WriteEntries(std::vector<UnindexedChunk>& chunks, const Tail& tail,
                                const std::vector<kv::EngineWrite>& also) {
  MutexLock lock(write_mutex_);
  counters_.next_segment_id = std::max(counters_.next_segment_id, tail.next_segment_id);
  counters_.open_segment = tail.open_segment;
  counters_.open_synced_end = tail.open_synced_end;
  size_t done = 0;
  Status status;
  while (done < chunks.size() && status.ok()) {
    size_t count = std::min(kEntriesPerBatch, chunks.size() - done);
    const bool is_last = done + count == chunks.size();
    status = WriteBatch(std::span(chunks).subspan(done, count), is_last ? also : std::vector<kv::EngineWrite>());
    if (status.ok()) done += count;
  }
  chunks.erase(chunks.begin(), chunks.begin() + static_cast<ptrdiff_t>(done));
  return status;
}

Status ChunkIndex::WriteBatch(std::span<const UnindexedChunk> chunks, std::vector<kv::EngineWrite> writes) {
  writes.reserve(writes.size() + chunks.size() + 2);
  std::vector<uint64_t> added;
  IndexCounters before = counters_;
  uint64_t bytes = 0;
  for (const UnindexedChunk& chunk : chunks) {
    AddSegmentKey(chunk.segment, &writes, &added);
    writes.push_back({ChunkKey(chunk.digest), EncodeLocation(chunk.location)});
    bytes += chunk.location.raw_bytes;
    counters_.chunk_count += chunk.replaced_bytes ? 0 : 1;
    counters_.unique_bytes += uint64_t{chunk.location.raw_bytes} - chunk.replaced_bytes.value_or(0);
  }
  writes.push_back({std::string(kCountersKey), EncodeCounters(counters_)});
  Status status = engine_.Write(writes, kv::WriteMode::kUnsynced);
  if (!status.ok()) {
    counters_ = before;
    for (uint64_t id : added) named_segments_.erase(id);
    return status.error().WithContext("writing the chunk index");
  }
  for (const UnindexedChunk& chunk : chunks) {
    chunk.segment->unindexed.fetch_sub(1);
    ChunkMarks& marks = MarksOf(chunk.digest);
    MutexLock lock(marks.mutex);
    marks.ForgetPending(chunk.digest, chunk.location);
  }
  pending_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  return {};
}

}  // namespace cairnfs::store
