// LocalChunkStore: chunks in append-only segment files of this node, and their index in the node's KvEngine.
//
// Rules it keeps:
//  - The engine never holds an index entry for bytes that are not synced: Put notes the entry in memory (pending), Sync
//    seals the tail of the open segment, waits for its writes, syncs the files touched, and only then writes the
//    entries to the engine (unsynced: the caller's next synced engine write makes them durable).
//  - Bytes of small chunks may be in the engine first (journal.h). Their entries then follow with a later Sync.
//  - A synced block of a segment is never written again until the whole segment is freed and gets a new generation.
//  - A Put stores a chunk anew whose copy was found damaged. Its index entry goes over to the new copy by these rules.
//  - A segment is freed only after the index entries that named it are gone durably and no reader holds it.
// Formats: docs/formats/segment.md, docs/formats/chunk-index.md.
#pragma once

#include <atomic>
#include <functional>

#include "base/context.h"
#include "chunking/digest.h"
#include "io/file.h"
#include "kv/engine.h"
#include "store/chunk_store.h"
#include "store/space.h"

namespace cairnfs::store {

// A terabyte in segments of 256 MiB has 4096 files; the default limit of descriptors is 1024.
inline constexpr size_t kSegmentFilesOpenMax = 256;

struct StoreOptions {
  uint64_t segment_bytes = 0;  // 0: chosen from the disk's size (a 64th, a power of two, 32 to 256 MiB; less on
                               // a disk below 512 MiB)
  uint64_t free_segments_bytes_max = 0;  // freed segments kept for reuse; 0: 2 % of the disk, 4 segments at least
  uint64_t reserve_bytes = 0;   // kept free on the disk for metadata; 0: the larger of 32 MiB and 1 %, at most a
                                // tenth of the disk
  size_t cache_bytes_max = 0;   // verified chunks kept after use; 0: three quarters of the pool; at most all of it
  unsigned verify_threads = 0;  // 0: as many as cores
  uint64_t log_bytes_max = 0;   // that the daemon's log may take of the disk: kept free beside the reserve
  // Another engine on the same disk, with names of others: it counts as metadata, and is tidied with this store's own.
  // Outlives the store.
  kv::KvEngine* engine_beside = nullptr;
  // For a check: a segment that is missing or cannot be told is a problem that Check reports, not an error of Open, and
  // Has says no of the chunks in it. Nothing may be put, nothing collected.
  bool tolerate_damage = false;
};

struct StoreStats {
  uint64_t chunk_count = 0;                             // in the index (pending ones included)
  uint64_t unique_bytes = 0;                            // sum of their lengths
  uint64_t segment_count = 0;                           // with data
  uint64_t segment_bytes = 0;                           // disk that all segment files take, free ones included
  uint64_t free_segment_bytes = 0;                      // freed segments kept for reuse
  uint64_t dead_bytes = 0;                              // estimate of bytes in segments that no index entry names
  uint64_t pending_bytes = 0;                           // put and not synced yet
  uint64_t staged_bytes = 0;                            // of pending_bytes: not written to a segment yet
  uint64_t new_bytes_total = 0, known_bytes_total = 0;  // since open
  uint64_t disk_read_bytes_total = 0, disk_write_bytes_total = 0;
  uint64_t cache_hits_total = 0, cache_misses_total = 0, corrupt_chunks_total = 0;
  uint64_t available_bytes = 0;  // new chunk bytes that still fit: free parts of segments + disk free - reserve
  std::string last_error;        // empty: none
};

// Answers whether a digest is reachable. Made by the marker (src/fs) at one snapshot. May say true for one that is not
// reachable (it is a filter), never false for one that is.
using LiveTest = std::function<bool(const Digest&)>;

// Of the chunks in the index: those that are needed, and those that the next collection frees.
struct LiveTotals {
  uint64_t live_chunks = 0, live_bytes = 0;
  uint64_t unreferenced_chunks = 0, unreferenced_bytes = 0;
};

struct SweepProgress {
  std::atomic<uint64_t> chunks_seen{0}, chunks_total{0}, chunks_freed{0}, bytes_freed{0};
  std::atomic<uint64_t> segments_compacted{0}, segments_freed{0}, bytes_moved{0};
};

struct SweepOptions {
  double dead_share_min = 0.05;       // compact a segment when more than this share of it is dead
  uint64_t bytes_per_second_max = 0;  // moved by compaction; 0: unbounded
  // Another key of the engine that goes with a chunk. null: none does.
  std::function<std::string(const Digest&)> companion_key = nullptr;
};

struct CheckProblem {
  std::string what;                 // a sentence: which segment or chunk, at which offset, what is wrong
  std::vector<Digest> chunks = {};  // whose bytes cannot be had any more
};

struct RebuildResult {
  uint64_t chunk_count = 0;           // in the new index
  std::vector<std::string> problems;  // a sentence for each segment of which something could not be read
};

class ChunkCache;
enum class Reader : uint8_t;  // chunk_cache.h

class LocalChunkStore final : public ChunkStore {
 public:
  // Opens `disk` (the segments directory) with the index in `engine` (keys with prefix "C"). Never writes to a segment
  // that was open before a crash: seals it. Removes what a crash left half-made. A segment whose header is damaged is
  // used as a sealed one. kCorrupt: an index entry cannot be decoded, or a segment that the index names is missing,
  // empty or another one (the message names it and says what helps); data already stored stays untouched.
  static Result<std::unique_ptr<LocalChunkStore>> Open(io::Disk& disk, kv::KvEngine& engine, io::BufferPool& pool,
                                                       const StoreOptions& options);
  ~LocalChunkStore() override;  // REQUIRES: no pin is left, and (unchecked) no call in progress. Does not sync.

  using ChunkStore::Put;
  Result<PutResult> Put(const Digest& digest, std::span<const io::Slice> slices, const NewBytes& new_bytes) override;
  Result<ChunkPin> Pin(const Digest& digest, size_t size) override;
  Result<std::vector<bool>> Has(const Context&, std::span<const Digest> digests) override { return Has(digests); }
  std::vector<bool> Has(std::span<const Digest> digests);
  // As Has, but no for a chunk whose copy was found damaged: what other nodes may count on.
  std::vector<bool> HasSound(std::span<const Digest> digests);
  void Get(const Digest& digest, ChunkCallback done) override;
  void GetFromDisk(const Digest& digest, ChunkCallback done) override;
  void Prefetch(std::span<const Digest> digests) override;
  // Get and Prefetch are for readers on this host. These say who reads, which decides how long the chunks are kept.
  void GetFor(Reader reader, const Digest& digest, ChunkCallback done);
  void PrefetchFor(Reader reader, std::span<const Digest> digests);
  Status Sync() override;
  // As Sync, for a caller that goes on with a synced write to the engine, which makes all of it durable. The bytes of a
  // few small chunks go with that write, and no segment is synced.
  Status SyncWithEngine();

  // Collection, one at a time. BeginCollection starts recording every Put, Pin and Has that succeeds, and takes over
  // all pins that are held; only after it may the caller take the snapshot that it marks from. Sweep then removes the
  // index entries of chunks that are neither live nor recorded nor pinned, and compacts and frees segments.
  // REQUIRES for Sweep: BeginCollection, and (unchecked) what the snapshot saw is durable. Otherwise a crash could undo
  // a deletion, and bring back a name whose chunks are gone. AbortCollection ends recording without a sweep.
  // kInterrupted: the context expired.
  void BeginCollection();
  Status Sweep(const Context& context, const LiveTest& live, const SweepOptions& options, SweepProgress& progress);
  void AbortCollection();
  // Visits each chunk that is in the index, with the segment that it lies in now. What is put meanwhile may be left
  // out. kInterrupted: the context expired.
  Status VisitChunks(const Context& context, const std::function<void(const Digest&, SegmentId)>& visit);
  // Of each: it is not here, and nobody has asked for it since BeginCollection. Records nothing.
  std::vector<bool> AreUnknown(std::span<const Digest> digests);
  // Counts what Sweep would keep and remove; removes nothing. Ends recording. kInterrupted: the context
  // expired. REQUIRES: BeginCollection.
  Result<LiveTotals> CountLive(const Context& context, const LiveTest& live);

  StoreStats Stats() const;
  // Free bytes of the disk, the reserve included. Any thread; asks the disk at most every 100 ms.
  uint64_t DiskFreeBytes() const;
  // StoreStats::available_bytes alone. Any thread; asks the disk at most every 100 ms.
  uint64_t AvailableBytes() const;
  // Admission of data that is not hashed yet: reserves room for `bytes` of possibly new data. False when it would not
  // fit. ReleaseReservation gives it back once the data was put or dropped. Any thread; a few atomic operations.
  bool TryReserve(uint64_t bytes);
  // Bytes of the disk that names may still take, beside what the metadata needs for its present content and for
  // `unwritten_bytes` more. At 0, calls that add to the metadata should be refused, so that a start and removals stay
  // possible. Any thread; asks the disk at most every 100 ms, every 2 ms while little is left.
  uint64_t MetadataRoom(uint64_t unwritten_bytes, Leaves leaves = Leaves::kFifth) const;
  uint64_t MetadataBytes() const;  // of the disk, taken by the metadata now
  uint64_t reserve_bytes() const;
  void ReleaseReservation(uint64_t bytes);
  uint64_t ReservedBytes() const;  // of all, at present. Any thread

  // Reads every record of every segment, verifies each digest and that each index entry points at its record.
  // `report` is called for each problem found. For `cairnfs check`; may run beside everything else. kInterrupted soon
  // after the context expired. Adds the lengths of the chunks that it has read to `bytes_read`, when given.
  Status Check(const Context& context, const std::function<void(const CheckProblem&)>& report,
               std::atomic<uint64_t>* bytes_read = nullptr);
  // Check calls the handler for each chunk whose copy it finds damaged; it must not block. null: none is called any
  // more. Returns once no call of the handler before is under way.
  void SetDamageHandler(std::function<void(const Digest&)> handler);
  // Writes the index anew from the segments, and takes over from the old one what the segments alone do not tell. For
  // an index that is lost or wrong. Nothing else may use the store's files meanwhile. What cannot be read is stepped
  // over. After kNoSpace and every other error it can be run again, and an index that was usable is still so.
  static Result<RebuildResult> RebuildIndex(io::Disk& disk, kv::KvEngine& engine, io::BufferPool& pool);
  // Removes the files that hold no chunks, those kept for reuse and those half-made, and returns their count. For a
  // disk so full that the engine cannot be opened. No store may have the disk open.
  static Result<uint64_t> RemoveUnusedFiles(io::Disk& disk);
  // Drops every verified chunk from memory (tests, benchmarks).
  void DropCache();
  size_t cache_bytes_max() const;  // verified chunks kept after use
  // Others may put in verified chunks that this store does not hold; Get finds these too.
  ChunkCache& cache();
  // The chunk, if Get would give it without asking a disk. Counts as a hit or miss as there.
  std::optional<ChunkData> FindCached(const Digest& digest);

 protected:
  void Unpin(const Digest& digest) override;

 private:
  class Impl;
  explicit LocalChunkStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairnfs::store
