// Which chunks exist and where: the engine's entries, and in memory those that are pending (put and not in the engine
// yet), pinned, recorded by a collection, or being deleted by it.
//
// A digest belongs to one shard. Put, Pin, Has and the sweep all decide under the shard's lock:
//  - a put, pin or look-up marks the digest (in progress, pinned, recorded) before it asks the engine;
//  - the sweep marks it dying only if it bears no such mark; a caller that comes while it is dying waits until the
//  entry
//    is gone, and then finds nothing.
// So a chunk that a save refers to again at that moment is either kept, or gone before the save asks.
//
// A put does not count a chunk as known whose stored copy was found damaged. It stores the chunk anew, and the entry
// goes over to the new copy as a new chunk gets its entry. That a copy is damaged is kept in memory only, by its place,
// so it says nothing of a copy in another place.
//
// Lock order: write_mutex_, then a shard's mutex, then unindexed_mutex_. No shard lock is held across an engine call.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/thread_annotations.h"
#include "kv/engine.h"
#include "store/chunk_index_format.h"
#include "store/chunk_marks.h"
#include "store/segment.h"

namespace cairnfs::store {

// A chunk that was put, and whose entry the next sync writes.
struct UnindexedChunk {
  Digest digest;
  Location location;
  SegmentPtr segment;
  std::optional<uint32_t> replaced_bytes = std::nullopt;  // length of the damaged copy whose entry it takes over
};

class ChunkIndex {
 public:
  explicit ChunkIndex(kv::KvEngine& engine) : engine_(engine) {}

  // Reads the counters and the segments' entries. kCorrupt, kNotSupported.
  Status Load();
  const IndexCounters& loaded_counters() const { return loaded_; }
  const std::unordered_map<uint64_t, Generation>& loaded_segments() const { return loaded_segments_; }

  // --- putting: Claim, then Stored or Abandon when it says so ---
  enum class Claim { kKnown, kMustStore };
  // Pins the digest when it is known. Waits while another thread stores the same chunk. One whose entry cannot be read
  // is to be stored.
  Result<Claim> ClaimForPut(const Digest& digest);
  void Stored(UnindexedChunk chunk);  // pins it
  void Abandon(const Digest& digest);

  // --- looking up ---
  Result<bool> PinIfPresent(const Digest& digest);
  void Unpin(const Digest& digest);
  Result<bool> Has(const Digest& digest);
  Result<std::optional<Location>> Find(const Digest& digest);
  // As Find, but asks the engine alone: a segment must not be freed while the engine names it.
  Result<std::optional<Location>> FindInEngine(const Digest& digest);
  // The copy at that place cannot be read, or fails its digest. Forgotten when it is replaced, and beyond a bound.
  void NoteDamaged(const Digest& digest, const Location& location);
  bool IsKnownDamaged(const Digest& digest);  // and was not put again since

  // --- syncing ---
  std::vector<UnindexedChunk> TakeUnindexed();
  void PutBackUnindexed(std::vector<UnindexedChunk> chunks);
  struct Tail {
    uint64_t next_segment_id;
    SegmentId open_segment;
    uint64_t open_synced_end;
  };
  // Writes the entries, unsynced; their chunks are pending no more. On failure `chunks` keeps those that were not
  // written. `also` is written with the last entries.
  Status WriteEntries(std::vector<UnindexedChunk>& chunks, const Tail& tail,
                      const std::vector<kv::EngineWrite>& also = {});

  // --- collecting ---
  void BeginRecording();
  void EndRecording();
  bool IsRecording();
  bool HasPins();  // whether a chunk is pinned
  // The engine's state, and what the counters said at that moment.
  struct View {
    std::unique_ptr<kv::EngineSnapshot> snapshot;
    uint64_t chunk_count;
    uint64_t unique_bytes;
  };
  View TakeView();
  struct Entry {
    Digest digest;
    Location location;
  };
  // At most `limit` entries that follow `after` (empty: from the start) in the view. Empty at the end. Sets `after`.
  Result<std::vector<Entry>> ReadEntries(const kv::EngineSnapshot* snapshot, std::string* after, size_t limit);
  // Whether DeleteUnused would leave it.
  bool IsInUse(const Digest& digest);
  // Deletes those of `entries` that are not pending, pinned or recorded, unsynced, and in the same write the keys that
  // `companion_key`, if it is not null, says for them. Returns the deleted ones.
  using CompanionKey = std::function<std::string(const Digest&)>;
  Result<std::vector<Entry>> DeleteUnused(const std::vector<Entry>& entries, const CompanionKey& companion_key);
  struct Move {
    Digest digest;
    Location from, to;
    SegmentPtr target;
    bool moved = false;  // out: false when the entry had changed
  };
  // Points the entries at their new places.
  Status MoveEntries(std::vector<Move>& moves, kv::WriteMode mode);
  // Deletes the segments' entries: their files may be freed once it succeeded with kSynced.
  Status ForgetSegments(std::span<const SegmentId> ids, kv::WriteMode mode);
  bool NamesSegment(SegmentId id);  // it has an entry in the engine
  // Corrects the counters by what a full scan found to be wrong.
  void CorrectCounters(int64_t chunks, int64_t bytes);
  // Fills in, by segment id, the end of the last record that an entry names. Reads every entry; leaves out those that
  // do not decode.
  using SegmentEnds = std::unordered_map<uint64_t, uint64_t>;
  Status FindSegmentEnds(SegmentEnds* ends);

  uint64_t chunk_count() const { return chunk_count_.load(std::memory_order_relaxed); }
  uint64_t unique_bytes() const { return unique_bytes_.load(std::memory_order_relaxed); }
  uint64_t pending_bytes() const { return pending_bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kShardCount = 64;
  ChunkMarks& MarksOf(const Digest& digest) { return marks_[static_cast<uint8_t>(digest.bytes[31]) % kShardCount]; }
  Status WriteBatch(std::span<const UnindexedChunk> chunks, std::vector<kv::EngineWrite> writes)
      REQUIRES_LOCK(write_mutex_);
  void AddSegmentKey(const SegmentPtr& segment, std::vector<kv::EngineWrite>* writes, std::vector<uint64_t>* added)
      REQUIRES_LOCK(write_mutex_);

  kv::KvEngine& engine_;
  IndexCounters loaded_;
  std::unordered_map<uint64_t, Generation> loaded_segments_;
  std::array<ChunkMarks, kShardCount> marks_;
  std::atomic<uint64_t> chunk_count_{0}, unique_bytes_{0}, pending_bytes_{0};
  std::atomic<bool> unreadable_noted_{false};  // that an entry cannot be read is in the log

  Mutex unindexed_mutex_;
  std::vector<UnindexedChunk> unindexed_ GUARDED_BY(unindexed_mutex_);

  Mutex write_mutex_;  // one batch at a time, so that the counters fit the entries
  IndexCounters counters_ GUARDED_BY(write_mutex_);
  std::set<uint64_t> named_segments_ GUARDED_BY(write_mutex_);  // that have an entry in the engine
};

}  // namespace cairnfs::store
