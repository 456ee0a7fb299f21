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

void ChunkIndex::WaitWhileDying(Shard& shard, const Digest& digest) {
  while (shard.dying.contains(digest)) shard.changed.Wait(shard.mutex);
}

void ChunkIndex::DropPin(Shard& shard, const Digest& digest) {
  auto pin = shard.pins.find(digest);
  if (pin == shard.pins.end()) return;
  if (--pin->second == 0) shard.pins.erase(pin);
}

void ChunkIndex::PinAndRecord(Shard& shard, const Digest& digest) {
  ++shard.pins[digest];
  if (shard.recording) shard.recorded.insert(digest);
}

bool ChunkIndex::IsDamaged(const Shard& shard, const Digest& digest, const Location& location) {
  if (shard.damaged.empty()) return false;
  auto found = shard.damaged.find(digest);
  return found != shard.damaged.end() && found->second == location;
}

Result<ChunkIndex::Claim> ChunkIndex::ClaimForPut(const Digest& digest) {
  Shard& shard = ShardOf(digest);
  {
    MutexLock lock(shard.mutex);
    for (;;) {
      WaitWhileDying(shard, digest);
      auto found = shard.pending.find(digest);
      if (found == shard.pending.end()) break;
      Pending& pending = found->second;
      if (pending.putting) {
        shard.changed.Wait(shard.mutex);
        continue;
      }
      if (!IsDamaged(shard, digest, pending.location)) {
        PinAndRecord(shard, digest);
        return Claim::kKnown;
      }
      pending.putting = true;
      pending.replaced_bytes = pending.location.raw_bytes;
      return Claim::kMustStore;
    }
    shard.pending[digest].putting = true;
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
  MutexLock lock(shard.mutex);
  if (found.ok() && IsDamaged(shard, digest, **found)) {
    // The entry stays until that of the new copy takes its place. A pending chunk is never collected.
    shard.pending[digest].replaced_bytes = (*found)->raw_bytes;
    return Claim::kMustStore;
  }
  shard.pending.erase(digest);
  shard.changed.NotifyAll();
  if (!found.ok()) return found.error();
  PinAndRecord(shard, digest);
  return Claim::kKnown;
}

void ChunkIndex::Stored(UnindexedChunk chunk) {
  Shard& shard = ShardOf(chunk.digest);
  pending_bytes_.fetch_add(chunk.location.raw_bytes, std::memory_order_relaxed);
  MutexLock lock(shard.mutex);
  Pending& pending = shard.pending[chunk.digest];
  chunk.replaced_bytes = pending.replaced_bytes;
  chunk_count_.fetch_add(chunk.replaced_bytes ? 0 : 1, std::memory_order_relaxed);
  unique_bytes_.fetch_add(uint64_t{chunk.location.raw_bytes} - chunk.replaced_bytes.value_or(0),
                          std::memory_order_relaxed);
  pending = {.putting = false, .stored = true, .location = chunk.location, .replaced_bytes = std::nullopt};
  shard.damaged.erase(chunk.digest);
  PinAndRecord(shard, chunk.digest);
  {
    // Before anybody can learn that the chunk is known, because their sync must cover it.
    MutexLock unindexed_lock(unindexed_mutex_);
    unindexed_.push_back(std::move(chunk));
  }
  shard.changed.NotifyAll();
}

void ChunkIndex::Abandon(const Digest& digest) {
  Shard& shard = ShardOf(digest);
  MutexLock lock(shard.mutex);
  Pending& pending = shard.pending[digest];
  pending.putting = false;
  pending.replaced_bytes.reset();
  if (!pending.stored) shard.pending.erase(digest);
  shard.changed.NotifyAll();
}

void ChunkIndex::NoteDamaged(const Digest& digest, const Location& location) {
  Shard& shard = ShardOf(digest);
  MutexLock lock(shard.mutex);
  if (shard.damaged.size() < kDamagedPerShardMax || shard.damaged.contains(digest)) shard.damaged[digest] = location;
}

bool ChunkIndex::IsKnownDamaged(const Digest& digest) {
  Shard& shard = ShardOf(digest);
  MutexLock lock(shard.mutex);
  return shard.damaged.contains(digest);
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
  Shard& shard = ShardOf(digest);
  {
    MutexLock lock(shard.mutex);
    auto found = shard.pending.find(digest);
    if (found != shard.pending.end() && found->second.stored) return std::optional<Location>{found->second.location};
  }
  // A chunk is in the engine before it stops being pending.
  return FindInEngine(digest);
}

Result<bool> ChunkIndex::PinIfPresent(const Digest& digest) {
  Shard& shard = ShardOf(digest);
  {
    MutexLock lock(shard.mutex);
    WaitWhileDying(shard, digest);
    PinAndRecord(shard, digest);
  }
  auto found = Find(digest);
  if (found.ok() && found->has_value()) return true;
  Unpin(digest);
  if (!found.ok()) return found.error();
  return false;
}

void ChunkIndex::Unpin(const Digest& digest) {
  Shard& shard = ShardOf(digest);
  MutexLock lock(shard.mutex);
  DropPin(shard, digest);
}

Result<bool> ChunkIndex::Has(const Digest& digest) {
  Shard& shard = ShardOf(digest);
  {
    MutexLock lock(shard.mutex);
    WaitWhileDying(shard, digest);
    if (shard.recording) shard.recorded.insert(digest);
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

std::string ChunkIndex::CountersValue() { return EncodeCounters(counters_); }

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

// The chunk is in the engine. If its copy is damaged, a new copy may be pending already, or about to be put.
void ChunkIndex::ForgetPending(Shard& shard, const UnindexedChunk& chunk) {
  auto found = shard.pending.find(chunk.digest);
  if (found == shard.pending.end()) return;
  Pending& pending = found->second;
  if (!pending.stored || pending.location != chunk.location) return;
  pending.stored = false;
  if (!pending.putting) shard.pending.erase(found);
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
  writes.push_back({std::string(kCountersKey), CountersValue()});
  Status status = engine_.Write(writes, kv::WriteMode::kUnsynced);
  if (!status.ok()) {
    counters_ = before;
    for (uint64_t id : added) named_segments_.erase(id);
    return status.error().WithContext("writing the chunk index");
  }
  for (const UnindexedChunk& chunk : chunks) {
    chunk.segment->unindexed.fetch_sub(1);
    Shard& shard = ShardOf(chunk.digest);
    MutexLock lock(shard.mutex);
    ForgetPending(shard, chunk);
  }
  pending_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  return {};
}

}  // namespace cairnfs::store
