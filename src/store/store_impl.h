// The parts of a LocalChunkStore and how they hang together. Private to src/store.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "store/chunk_cache.h"
#include "store/chunk_index.h"
#include "store/chunk_reader.h"
#include "store/failure.h"
#include "store/journal.h"
#include "store/local_chunk_store.h"
#include "store/segment.h"
#include "store/segment_writer.h"
#include "store/space.h"

namespace cairnfs::store {

// Replaces every 0 of `options` by the value that it stands for. kInvalidArgument.
Result<StoreOptions> ResolveOptions(StoreOptions options, const io::Disk::Space& space, const io::BufferPool& pool);

class LocalChunkStore::Impl {
 public:
  Impl(io::Disk& disk, kv::KvEngine& engine, io::BufferPool& pool, const StoreOptions& resolved);
  ~Impl();

  // open.cc
  Status Start();

  // local_chunk_store.cc
  Result<PutResult> Put(LocalChunkStore* owner, const Digest& digest, std::span<const io::Slice> slices);
  Status Sync();
  StoreStats Stats() const;
  void Report(const Error& error);
  uint64_t MetadataRoom(uint64_t unwritten_bytes);

  // journal.cc
  Status SyncWithEngine();
  Status ReplayJournal();  // REQUIRES (unchecked): Start() has returned, and nothing else uses the store yet

  // sweep.cc
  Status Sweep(const Context& context, const LiveTest& live, const SweepOptions& options, SweepProgress& progress);
  Result<LiveTotals> CountLive(const Context& context, const LiveTest& live);

  // check.cc
  Status Check(const Context& context, const std::function<void(const CheckProblem&)>& report,
               std::atomic<uint64_t>& bytes_read);

  Mutex damage_mutex_;
  std::function<void(const Digest&)> on_damage_ GUARDED_BY(damage_mutex_);

  // False for a chunk of an unusable segment.
  Result<bool> Has(const Digest& digest);

  struct SegmentUse {
    uint64_t live_bytes = 0;  // of records that the index names, headers included
    uint64_t live_count = 0;
  };
  using SegmentUses = std::map<uint64_t, SegmentUse>;

  // First, because the parts below wake the background thread until they are gone.
  Mutex maintenance_mutex_;
  CondVar maintenance_changed_;
  bool stopping_ GUARDED_BY(maintenance_mutex_) = false;
  bool kicked_ GUARDED_BY(maintenance_mutex_) = false;
  uint64_t passes_begun_ GUARDED_BY(maintenance_mutex_) = 0;
  uint64_t passes_ended_ GUARDED_BY(maintenance_mutex_) = 0;
  std::vector<SegmentPtr> tails_ GUARDED_BY(maintenance_mutex_);  // sealed and written: the unused rest goes back

  const StoreOptions options_;
  std::map<uint64_t, std::string> unusable_;  // segment id: what is wrong; constant once open, empty unless tolerated
  io::Disk& disk_;
  kv::KvEngine& engine_;
  io::BufferPool& pool_;
  FailureState failure_;
  ChunkIndex index_;
  Journal journal_;  // of the thread that syncs (sync_running_)
  SpaceMeter space_;
  SegmentSet segments_;
  SegmentWriter writer_;
  ChunkCache cache_;
  ChunkReader reader_;

 private:
  Status SyncRound();
  Status WriteIndex(std::vector<UnindexedChunk>& chunks, const ChunkIndex::Tail& tail);
  bool TryJournal();
  std::optional<std::vector<Journal::Entry>> ReadToJournal(const std::vector<UnindexedChunk>& chunks);
  Status PutBack(const Journal::Entry& entry);
  void Maintain();
  void Wake();
  void AwaitMaintenance();  // until the background thread has done what was due
  void GiveBackLater(SegmentPtr segment);
  void GiveBackTails();

  // open.cc
  Status AddSegment(SegmentId id);
  Result<SegmentPtr> MakeFromHeader(io::File& file, SegmentId id, std::optional<Generation> generation,
                                    uint64_t file_bytes);
  Status AddUnlessDamaged(SegmentId id);
  void DiscardUnnamed(SegmentPtr segment, uint64_t file_bytes);
  Status CheckNamedSegments();
  Result<uint64_t> FindEnd(io::File& file, const SegmentHeader& header, bool is_named);
  Result<uint64_t> FindNamedEnd(const SegmentHeader& header);

  // sweep.cc
  Status DeleteDead(const Context& context, const LiveTest& live, SweepProgress& progress, SegmentUses* uses);
  void SealOpenIfWasteful(const SegmentUses& uses, double dead_share_min);
  std::vector<SegmentPtr> ChooseForCompaction(const SegmentUses& uses, double dead_share_min);
  static bool IsWasteful(uint64_t waste_bytes, uint64_t total_bytes, double dead_share_min);

  // compaction.cc
  struct Victim {
    SegmentPtr segment;
    std::vector<ChunkIndex::Entry> entries;  // that name it, by offset
  };
  using Victims = std::vector<Victim>;
  struct Batch;
  Status CompactAll(const Context& context, std::vector<SegmentPtr> chosen, SegmentUses& uses,
                    const SweepOptions& options, SweepProgress& progress);
  // The index entries that name the segments.
  Result<Victims> CollectEntries(std::span<const SegmentPtr> segments);
  static bool IsWorthMoving(const Victim& victim, double dead_share_min);
  Status CompactGroup(const Context& context, Victims& victims, const SweepOptions& options, SweepProgress& progress);
  Status CopyVictim(const Context& context, Victim& victim, const SweepOptions& options, SweepProgress& progress,
                    Batch& batch);
  Status CopyChunk(const Context& context, const ChunkIndex::Entry& entry, const Result<ByteSpan>& record,
                   const SweepOptions& options, SweepProgress& progress, Batch& batch);
  // The engine says so too; a copy that is only pending might be lost, so it does not count.
  bool StillNamed(const ChunkIndex::Entry& entry);
  Status FinishBatch(Batch& batch, SweepProgress& progress);

  // check.cc
  using Reporter = std::function<void(const CheckProblem&)>;
  Status CheckSegment(const Context& context, Victim& victim, const Reporter& report,
                      std::atomic<uint64_t>& bytes_read);
  // Fills in, for each segment that is a key, the chunks that the index names in it.
  Status CollectChunks(const ChunkIndex::View& view, std::map<uint64_t, std::vector<Digest>>& chunks);
  void NoteDamaged(const ChunkIndex::Entry& entry);
  // True when the index still has the entry: so what is wrong there is damage, not a chunk that moved.
  bool StillThere(const ChunkIndex::Entry& entry);
  Status ReportMissing(const SegmentUses& uses, const ChunkIndex::View& view, const Reporter& report);
  Status ReportUnnamed(const Reporter& report);

  // While opening, once a segment needs it.
  std::optional<ChunkIndex::SegmentEnds> segment_ends_;
  std::optional<Error> header_error_;  // while opening: the first of a header that could not be read
  bool any_header_read_ = false;

  std::atomic<uint64_t> new_bytes_total_{0}, known_bytes_total_{0};

  mutable Mutex error_mutex_;
  std::string last_error_ GUARDED_BY(error_mutex_);

  Mutex sync_mutex_;
  CondVar sync_changed_;
  bool sync_running_ GUARDED_BY(sync_mutex_) = false;
  uint64_t sync_started_ GUARDED_BY(sync_mutex_) = 0;  // rounds
  uint64_t sync_finished_ GUARDED_BY(sync_mutex_) = 0;
  std::map<uint64_t, std::pair<unsigned, Status>> sync_results_ GUARDED_BY(sync_mutex_);  // by round: waiters, result

  std::thread maintenance_;
};

}  // namespace cairnfs::store
