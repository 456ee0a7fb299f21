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
#include "store/compaction.h"
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
  Result<PutResult> Put(LocalChunkStore* owner, const Digest& digest, std::span<const io::Slice> slices,
                        const NewBytes& new_bytes);
  Status Sync();
  StoreStats Stats() const;
  void Report(const Error& error);
  uint64_t MetadataRoom(uint64_t unwritten_bytes, Leaves leaves);

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

  // sweep.cc
  Status DeleteDead(const Context& context, const LiveTest& live, const ChunkIndex::CompanionKey& companion_key,
                    SweepProgress& progress, SegmentUses* uses);
  void SealOpenIfWasteful(const SegmentUses& uses, double dead_share_min);
  std::vector<SegmentPtr> ChooseForCompaction(const SegmentUses& uses, double dead_share_min);

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
