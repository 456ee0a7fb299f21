// The part of the chunk index that collection and compaction use.
#include <algorithm>

#include "store/chunk_index.h"

namespace cairnfs::store {

void ChunkIndex::BeginRecording() {
  for (ChunkMarks& marks : marks_) {
    MutexLock lock(marks.mutex);
    marks.recording = true;
    marks.recorded.clear();
    for (const auto& [digest, count] : marks.pins) marks.recorded.insert(digest);
    // A put that is under way pins its chunk later, and is recorded then.
  }
}

bool ChunkIndex::IsRecording() {
  MutexLock lock(marks_[0].mutex);
  return marks_[0].recording;
}

bool ChunkIndex::HasPins() {
  return std::any_of(marks_.begin(), marks_.end(), [](ChunkMarks& marks) {
    MutexLock lock(marks.mutex);
    return !marks.pins.empty();
  });
}

void ChunkIndex::EndRecording() {
  for (ChunkMarks& marks : marks_) {
    std::unordered_set<Digest, DigestHash> dropped;
    MutexLock lock(marks.mutex);
    marks.recording = false;
    dropped.swap(marks.recorded);
  }
}

ChunkIndex::View ChunkIndex::TakeView() {
  MutexLock lock(write_mutex_);
  return View{engine_.GetSnapshot(), counters_.chunk_count, counters_.unique_bytes};
}

Result<std::vector<ChunkIndex::Entry>> ChunkIndex::ReadEntries(const kv::EngineSnapshot* snapshot, std::string* after,
                                                               size_t limit) {
  std::vector<Entry> entries;
  Status decoded;
  std::string begin = after->empty() ? std::string(kIndexBegin) : *after + '\0';
  Status scanned = engine_.Scan(begin, kIndexEnd, snapshot, [&](std::string_view key, std::string_view value) {
    auto digest = ParseChunkKey(key);
    if (!digest) return true;
    auto location = DecodeLocation(value);
    if (!location.ok()) {
      decoded = location.error().WithContext("chunk " + digest->ToHex());
      return false;
    }
    entries.push_back({*digest, *location});
    return entries.size() < limit;
  });
  CAIRNFS_RETURN_IF_ERROR(scanned);
  CAIRNFS_RETURN_IF_ERROR(decoded);
  if (!entries.empty()) *after = ChunkKey(entries.back().digest);
  return entries;
}

bool ChunkIndex::IsInUse(const Digest& digest) {
  ChunkMarks& marks = MarksOf(digest);
  MutexLock lock(marks.mutex);
  return marks.IsInUse(digest);
}

Result<std::vector<ChunkIndex::Entry>> ChunkIndex::DeleteUnused(const std::vector<Entry>& entries,
                                                                const CompanionKey& companion_key) {
  std::vector<Entry> deleted;
  for (const Entry& entry : entries) {
    ChunkMarks& marks = MarksOf(entry.digest);
    MutexLock lock(marks.mutex);
    if (marks.IsInUse(entry.digest)) continue;
    marks.dying.insert(entry.digest);
    deleted.push_back(entry);
  }
  if (deleted.empty()) return deleted;
  Status status;
  {
    MutexLock lock(write_mutex_);
    IndexCounters before = counters_;
    std::vector<kv::EngineWrite> writes;
    for (const Entry& entry : deleted) {
      writes.push_back({ChunkKey(entry.digest), std::nullopt});
      if (companion_key) writes.push_back({companion_key(entry.digest), std::nullopt});
      counters_.chunk_count -= std::min<uint64_t>(counters_.chunk_count, 1);
      counters_.unique_bytes -= std::min<uint64_t>(counters_.unique_bytes, entry.location.raw_bytes);
    }
    writes.push_back({std::string(kCountersKey), EncodeCounters(counters_)});
    status = engine_.Write(writes, kv::WriteMode::kUnsynced);
    if (!status.ok()) counters_ = before;
  }
  for (const Entry& entry : deleted) {
    if (status.ok()) {
      chunk_count_.fetch_sub(1, std::memory_order_relaxed);
      unique_bytes_.fetch_sub(entry.location.raw_bytes, std::memory_order_relaxed);
    }
    ChunkMarks& marks = MarksOf(entry.digest);
    MutexLock lock(marks.mutex);
    marks.dying.erase(entry.digest);
    if (status.ok()) marks.damaged.erase(entry.digest);
    marks.changed.NotifyAll();
  }
  if (!status.ok()) return status.error().WithContext("deleting from the chunk index");
  return deleted;
}

Status ChunkIndex::MoveEntries(std::vector<Move>& moves, kv::WriteMode mode) {
  MutexLock lock(write_mutex_);
  std::vector<kv::EngineWrite> writes;
  std::vector<uint64_t> added;
  auto take_back = [&] {  // nothing is written: the segments have no key
    write_mutex_.AssertHeld();
    for (uint64_t id : added) named_segments_.erase(id);
  };
  for (Move& move : moves) {
    // Entries change under write_mutex_, so what is read here still holds when it is written.
    auto current = FindInEngine(move.digest);
    if (!current.ok()) {
      take_back();
      return current.error();
    }
    move.moved = current->has_value() && **current == move.from;
    if (!move.moved) continue;
    AddSegmentKey(move.target, &writes, &added);
    writes.push_back({ChunkKey(move.digest), EncodeLocation(move.to)});
  }
  writes.push_back({std::string(kCountersKey), EncodeCounters(counters_)});
  Status status = engine_.Write(writes, mode);
  if (!status.ok()) {
    take_back();
    return status.error().WithContext("moving entries of the chunk index");
  }
  return {};
}

Status ChunkIndex::ForgetSegments(std::span<const SegmentId> ids, kv::WriteMode mode) {
  MutexLock lock(write_mutex_);
  std::vector<kv::EngineWrite> writes;
  for (SegmentId id : ids) writes.push_back({SegmentKey(id), std::nullopt});
  writes.push_back({std::string(kCountersKey), EncodeCounters(counters_)});
  CAIRNFS_RETURN_IF_ERROR(engine_.Write(writes, mode));
  for (SegmentId id : ids) named_segments_.erase(id.value);
  return {};
}

bool ChunkIndex::NamesSegment(SegmentId id) {
  MutexLock lock(write_mutex_);
  return named_segments_.contains(id.value);
}

Status ChunkIndex::FindSegmentEnds(SegmentEnds* ends) {
  return engine_.Scan(kIndexBegin, kIndexEnd, nullptr, [ends](std::string_view key, std::string_view value) {
    if (!ParseChunkKey(key)) return true;
    auto location = DecodeLocation(value);
    if (!location.ok()) return true;
    uint64_t& end = (*ends)[location->segment.value];
    end = std::max(end, location->offset + RecordBytes(location->stored_bytes));
    return true;
  });
}

void ChunkIndex::CorrectCounters(int64_t chunks, int64_t bytes) {
  MutexLock lock(write_mutex_);
  counters_.chunk_count += static_cast<uint64_t>(chunks);
  counters_.unique_bytes += static_cast<uint64_t>(bytes);
  chunk_count_.fetch_add(static_cast<uint64_t>(chunks), std::memory_order_relaxed);
  unique_bytes_.fetch_add(static_cast<uint64_t>(bytes), std::memory_order_relaxed);
}

}  // namespace cairnfs::store
