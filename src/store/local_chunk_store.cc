#include "store/local_chunk_store.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/machine_limits.h"
#include "store/store_impl.h"

namespace cairnfs::store {
namespace {

Failpoint before_seal("store.before_seal", Failpoint::Kind::kKill);
Failpoint after_segment_sync("store.after_segment_sync", Failpoint::Kind::kKill);
Failpoint after_index_write("store.after_index_write", Failpoint::Kind::kKill);
Failpoint segment_sync("store.segment_sync", Failpoint::Kind::kSkippable);

constexpr uint64_t kSegmentBytesMin = 64 * kKiB;
constexpr size_t kWindowBytesMax = 4 * kMiB;
constexpr std::chrono::milliseconds kTrimInterval{50};
constexpr std::chrono::seconds kIdleInterval{5};

// Of both engines: either may write its tables anew while the other one does.
kv::DiskUse UseOf(kv::KvEngine& engine, kv::KvEngine* beside) {
  const kv::DiskUse use = engine.GetDiskUse();
  if (beside == nullptr) return use;
  const kv::DiskUse more = beside->GetDiskUse();
  return {use.held_bytes + more.held_bytes, use.needed_bytes + more.needed_bytes};
}

SegmentWriter::Options WriterOptions(const StoreOptions& options) {
  SegmentWriter::Options writer;
  writer.segment_bytes = options.segment_bytes;
  writer.window_bytes = std::min<uint64_t>(kWindowBytesMax, options.segment_bytes);
  writer.chunk_bytes_max = std::min<size_t>(kChunkBytesMax, writer.window_bytes - 2 * kPageBytes);
  writer.reserve_bytes = options.reserve_bytes;
  return writer;
}

}  // namespace

Result<StoreOptions> ResolveOptions(StoreOptions options, const io::Disk::Space& space, const io::BufferPool& pool) {
  if (options.segment_bytes == 0) {
    // A chunk that does not fit the tail of a segment leaves up to a chunk's size unused: segments are many chunks
    // long.
    uint64_t least = std::min<uint64_t>(32 * kMiB, space.total_bytes / 16);
    uint64_t wanted = std::clamp<uint64_t>(space.total_bytes / 64, least, std::max<uint64_t>(least, 256 * kMiB));
    options.segment_bytes = std::max<uint64_t>(4 * kMiB, std::bit_floor(wanted));
  }
  if (options.segment_bytes < kSegmentBytesMin || options.segment_bytes % kPageBytes != 0) {
    return MakeError(ErrorCode::kInvalidArgument, "segment size " + std::to_string(options.segment_bytes) +
                                                      "; it must be a multiple of 4096, 65536 at least");
  }
  if (options.free_segments_bytes_max == 0) {
    options.free_segments_bytes_max = std::max(space.total_bytes / 50, 4 * options.segment_bytes);
  }
  if (options.reserve_bytes == 0) {
    options.reserve_bytes = std::min(std::max<uint64_t>(32 * kMiB, space.total_bytes / 100), space.total_bytes / 10);
  }
  if (space.total_bytes > 0 && options.reserve_bytes >= space.total_bytes) {
    return MakeError(ErrorCode::kInvalidArgument, "reserve is " + std::to_string(options.reserve_bytes) +
                                                      " bytes, and the disk has " + std::to_string(space.total_bytes) +
                                                      ": nothing could be stored; give less");
  }
  const size_t pool_bytes = pool.count() * io::BufferPool::kBufferBytes;
  if (options.cache_bytes_max == 0) options.cache_bytes_max = pool_bytes / 4 * 3;
  options.cache_bytes_max = std::min(options.cache_bytes_max, pool_bytes);  // it also bounds the names of what has left
  if (options.verify_threads == 0) options.verify_threads = UsableCores();
  return options;
}

LocalChunkStore::Impl::Impl(io::Disk& disk, kv::KvEngine& engine, io::BufferPool& pool, const StoreOptions& resolved)
    : options_(resolved),
      disk_(disk),
      engine_(engine),
      pool_(pool),
      index_(engine),
      journal_(engine),
      space_(disk, resolved.reserve_bytes, resolved.segment_bytes, WriterOptions(resolved).SegmentBytesMin(),
             [&engine, beside = resolved.engine_beside, log_bytes_max = resolved.log_bytes_max] {
               kv::DiskUse use = UseOf(engine, beside);
               use.needed_bytes += log_bytes_max;
               return use;
             }),
      segments_(disk, space_, [this] { Wake(); }),
      writer_(WriterOptions(resolved), segments_, space_, failure_,
              {.wake = [this] { Wake(); },
               .on_complete = [this](SegmentPtr segment) { GiveBackLater(std::move(segment)); }}),
      cache_(pool, resolved.cache_bytes_max),
      reader_(pool, index_, segments_, writer_, cache_, resolved.verify_threads,
              [this](const Error& error) { Report(error); }) {}

LocalChunkStore::Impl::~Impl() {
  assert(!index_.HasPins());
  std::vector<SegmentPtr> tails;  // the last reference to a segment may call Wake, which takes the lock
  {
    MutexLock lock(maintenance_mutex_);
    stopping_ = true;
    tails.swap(tails_);
  }
  tails.clear();
  maintenance_changed_.NotifyAll();
  if (maintenance_.joinable()) maintenance_.join();
  index_.TakeUnindexed();
}

void LocalChunkStore::Impl::Report(const Error& error) {
  spdlog::error("chunk store: {}", error.message);
  MutexLock lock(error_mutex_);
  last_error_ = error.message;
}

// --- putting -----------------------------------------------------------------------------------------------------

Result<PutResult> LocalChunkStore::Impl::Put(LocalChunkStore* owner, const Digest& digest,
                                             std::span<const io::Slice> slices, const NewBytes& new_bytes) {
  CAIRNFS_RETURN_IF_ERROR(failure_.Check());
  size_t size = 0;
  for (const io::Slice& slice : slices) size += slice.size;
  CAIRNFS_ASSIGN_OR_RETURN(ChunkIndex::Claim claim, index_.ClaimForPut(digest));
  if (claim == ChunkIndex::Claim::kKnown) {
    known_bytes_total_.fetch_add(size, std::memory_order_relaxed);
    return PutResult{ChunkPin(owner, digest), false};
  }
  auto appended = writer_.Append(digest, slices, size, SegmentWriter::Purpose::kSave);
  if (!appended.ok()) {
    index_.Abandon(digest);
    return appended.error();
  }
  index_.Stored({digest, appended->location, std::move(appended->segment)});
  new_bytes_total_.fetch_add(size, std::memory_order_relaxed);
  if (new_bytes != nullptr) new_bytes(size);
  cache_.InsertWritten(digest, slices, size);
  if (!cache_.empty()) cache_.Trim();
  return PutResult{ChunkPin(owner, digest), true};
}

// --- syncing -----------------------------------------------------------------------------------------------------

// A round that begins after the call covers it. One thread runs it for all who wait.
Status LocalChunkStore::Impl::Sync() {
  MutexLock lock(sync_mutex_);
  const uint64_t round = sync_started_ + 1;
  ++sync_results_[round].first;
  while (sync_finished_ < round) {
    if (sync_running_) {
      sync_changed_.Wait(sync_mutex_);
      continue;
    }
    sync_running_ = true;
    ++sync_started_;
    lock.Unlock();
    Status status = SyncRound();
    lock.Lock();
    sync_running_ = false;
    sync_finished_ = sync_started_;
    sync_results_[sync_finished_].second = status;
    sync_changed_.NotifyAll();
  }
  auto& [waiters, result] = sync_results_[round];
  Status status = result;
  if (--waiters == 0) sync_results_.erase(round);
  return status;
}

Status LocalChunkStore::Impl::SyncRound() {
  CAIRNFS_RETURN_IF_ERROR(failure_.Check());
  before_seal.Pass();
  std::vector<UnindexedChunk> chunks = index_.TakeUnindexed();
  auto out = writer_.WriteOut(SegmentWriter::WriteOutScope::kForSync);
  if (!out.ok()) {
    index_.PutBackUnindexed(std::move(chunks));
    return out.error();
  }
  for (const SegmentPtr& segment : out->touched) {
    auto file = segments_.FileOf(*segment);
    Status synced = !file.ok() ? Status(file.error()) : segment_sync.PassOrSkip() ? Status() : (*file)->DataSync();
    if (synced.ok()) continue;
    Error error = synced.error().WithContext("syncing " + segment->name());
    failure_.Fail(error);
    writer_.WakeAll();
    index_.PutBackUnindexed(std::move(chunks));
    return error;
  }
  after_segment_sync.Pass();
  if (!chunks.empty()) {
    const ChunkIndex::Tail tail{segments_.next_id(), out->open_segment, out->open_end};
    Status indexed = WriteIndex(chunks, tail);
    if (!indexed.ok() && indexed.error().code == ErrorCode::kNoSpace && segments_.GiveUpFree(UINT64_MAX)) {
      indexed = WriteIndex(chunks, tail);
    }
    if (!indexed.ok()) {
      index_.PutBackUnindexed(std::move(chunks));
      if (indexed.error().code != ErrorCode::kNoSpace) {
        failure_.Fail(indexed.error());
        writer_.WakeAll();
      }
      return indexed;
    }
  } else {
    CAIRNFS_RETURN_IF_ERROR(journal_.Drop());
  }
  after_index_write.Pass();
  return {};
}

// Every chunk of the journal is among `chunks`, or was indexed before.
Status LocalChunkStore::Impl::WriteIndex(std::vector<UnindexedChunk>& chunks, const ChunkIndex::Tail& tail) {
  CAIRNFS_RETURN_IF_ERROR(index_.WriteEntries(chunks, tail, journal_.Deletions()));
  journal_.Forget();
  return {};
}

// --- the background thread ---------------------------------------------------------------------------------------

void LocalChunkStore::Impl::Wake() {
  MutexLock lock(maintenance_mutex_);
  kicked_ = true;
  maintenance_changed_.NotifyAll();
}

void LocalChunkStore::Impl::AwaitMaintenance() {
  MutexLock lock(maintenance_mutex_);
  const uint64_t wanted = passes_begun_ + 1;
  kicked_ = true;
  maintenance_changed_.NotifyAll();
  while (passes_ended_ < wanted && !stopping_) maintenance_changed_.Wait(maintenance_mutex_);
}

void LocalChunkStore::Impl::GiveBackLater(SegmentPtr segment) {
  MutexLock lock(maintenance_mutex_);
  tails_.push_back(std::move(segment));
  kicked_ = true;
  maintenance_changed_.NotifyAll();
}

// Makes segments ahead of need, frees files, and takes cached buffers back when the pool runs short.
void LocalChunkStore::Impl::Maintain() {
  for (;;) {
    {
      MutexLock lock(maintenance_mutex_);
      if (!kicked_ && !stopping_) {
        maintenance_changed_.WaitFor(maintenance_mutex_, cache_.empty() ? kIdleInterval : kTrimInterval);
      }
      if (stopping_) return;
      kicked_ = false;
      ++passes_begun_;
    }
    GiveBackTails();
    if (segments_.HasReleased()) segments_.ProcessReleased(options_.free_segments_bytes_max);
    segments_.GiveUpFree(space_.KeptBytes());  // what is kept for reuse must leave the metadata its room
    writer_.PrepareNext();
    segments_.CloseFilesBeyondLimit();
    cache_.Trim();
    engine_.Tidy();
    if (options_.engine_beside != nullptr) options_.engine_beside->Tidy();
    MutexLock lock(maintenance_mutex_);
    ++passes_ended_;
    maintenance_changed_.NotifyAll();
  }
}

uint64_t LocalChunkStore::Impl::MetadataRoom(uint64_t unwritten_bytes, Leaves leaves) {
  const uint64_t room = space_.MetadataRoom(unwritten_bytes, leaves);
  if (room == 0 && segments_.HasFree()) Wake();
  return room;
}

void LocalChunkStore::Impl::GiveBackTails() {
  std::vector<SegmentPtr> tails;
  {
    MutexLock lock(maintenance_mutex_);
    tails.swap(tails_);
  }
  for (const SegmentPtr& segment : tails) {
    uint64_t end = segment->used_end.load();
    if (end >= segment->file_bytes.load()) continue;
    auto file = segments_.FileOf(*segment);
    Status status = file.ok() ? (*file)->Truncate(end) : Status(file.error());
    if (status.ok()) {
      segment->file_bytes = end;
    } else {
      spdlog::warn("giving back the unused end of {}: {}", segment->name(), status.error().message);
    }
  }
}

StoreStats LocalChunkStore::Impl::Stats() const {
  StoreStats stats{};
  stats.chunk_count = index_.chunk_count();
  stats.unique_bytes = index_.unique_bytes();
  SegmentSet::Totals totals = segments_.GetTotals();
  stats.segment_count = totals.segment_count;
  stats.segment_bytes = totals.file_bytes;
  stats.free_segment_bytes = totals.free_bytes;
  uint64_t used = 0;
  for (const SegmentPtr& segment : segments_.All()) used += segment->used_end.load() - kSegmentHeaderBytes;
  uint64_t live = stats.unique_bytes + stats.chunk_count * kRecordHeaderBytes;
  stats.dead_bytes = used > live ? used - live : 0;
  const uint64_t pending = index_.pending_bytes();
  stats.pending_bytes = pending - std::min(pending, journal_.bytes());
  stats.staged_bytes = std::min(stats.pending_bytes, writer_.staged_bytes());
  stats.new_bytes_total = new_bytes_total_.load(std::memory_order_relaxed);
  stats.known_bytes_total = known_bytes_total_.load(std::memory_order_relaxed);
  stats.disk_read_bytes_total = reader_.counters().disk_read_bytes.load(std::memory_order_relaxed);
  stats.disk_write_bytes_total = writer_.written_bytes_total();
  stats.cache_hits_total = reader_.counters().cache_hits.load(std::memory_order_relaxed);
  stats.cache_misses_total = reader_.counters().cache_misses.load(std::memory_order_relaxed);
  stats.corrupt_chunks_total = reader_.counters().corrupt_chunks.load(std::memory_order_relaxed);
  stats.available_bytes = const_cast<SpaceMeter&>(space_).AvailableBytes();
  stats.last_error = failure_.message();
  if (stats.last_error.empty()) {
    MutexLock lock(error_mutex_);
    stats.last_error = last_error_;
  }
  return stats;
}

// --- the public face ---------------------------------------------------------------------------------------------

LocalChunkStore::LocalChunkStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LocalChunkStore::~LocalChunkStore() = default;

Result<std::unique_ptr<LocalChunkStore>> LocalChunkStore::Open(io::Disk& disk, kv::KvEngine& engine,
                                                               io::BufferPool& pool, const StoreOptions& options) {
  CAIRNFS_ASSIGN_OR_RETURN(io::Disk::Space space, disk.GetSpace());
  CAIRNFS_ASSIGN_OR_RETURN(StoreOptions resolved, ResolveOptions(options, space, pool));
  auto impl = std::make_unique<Impl>(disk, engine, pool, resolved);
  CAIRNFS_RETURN_IF_ERROR(impl->Start());
  CAIRNFS_RETURN_IF_ERROR(impl->ReplayJournal());
  return std::unique_ptr<LocalChunkStore>(new LocalChunkStore(std::move(impl)));
}

Result<PutResult> LocalChunkStore::Put(const Digest& digest, std::span<const io::Slice> slices,
                                       const NewBytes& new_bytes) {
  return impl_->Put(this, digest, slices, new_bytes);
}

Result<ChunkPin> LocalChunkStore::Pin(const Digest& digest, size_t) {
  CAIRNFS_ASSIGN_OR_RETURN(bool present, impl_->index_.PinIfPresent(digest));
  if (!present) return MakeError(ErrorCode::kNotFound, "no chunk " + digest.ToHex());
  return ChunkPin(this, digest);
}

Result<bool> LocalChunkStore::Impl::Has(const Digest& digest) {
  if (unusable_.empty()) return index_.Has(digest);
  CAIRNFS_ASSIGN_OR_RETURN(auto found, index_.Find(digest));
  return found && !unusable_.contains(found->segment.value);
}

std::vector<bool> LocalChunkStore::Has(std::span<const Digest> digests) {
  std::vector<bool> has;
  has.reserve(digests.size());
  for (const Digest& digest : digests) {
    auto present = impl_->Has(digest);
    if (!present.ok()) impl_->Report(present.error());
    has.push_back(present.ok() && *present);
  }
  return has;
}

std::vector<bool> LocalChunkStore::HasSound(std::span<const Digest> digests) {
  std::vector<bool> has = Has(digests);
  for (size_t i = 0; i < digests.size(); ++i) has[i] = has[i] && !impl_->index_.IsKnownDamaged(digests[i]);
  return has;
}

void LocalChunkStore::Get(const Digest& digest, ChunkCallback done) {
  GetFor(Reader::kThisHost, digest, std::move(done));
}
void LocalChunkStore::GetFromDisk(const Digest& digest, ChunkCallback done) {
  impl_->reader_.GetFromDisk(digest, Reader::kThisHost, std::move(done));
}
void LocalChunkStore::GetFor(Reader reader, const Digest& digest, ChunkCallback done) {
  impl_->reader_.Get(digest, reader, std::move(done));
}
void LocalChunkStore::Prefetch(std::span<const Digest> digests) { PrefetchFor(Reader::kThisHost, digests); }
void LocalChunkStore::PrefetchFor(Reader reader, std::span<const Digest> digests) {
  impl_->reader_.Prefetch(digests, reader);
}
Status LocalChunkStore::Sync() { return impl_->Sync(); }
Status LocalChunkStore::SyncWithEngine() { return impl_->SyncWithEngine(); }
void LocalChunkStore::Unpin(const Digest& digest) { impl_->index_.Unpin(digest); }

void LocalChunkStore::BeginCollection() { impl_->index_.BeginRecording(); }
Status LocalChunkStore::VisitChunks(const Context& context,
                                    const std::function<void(const Digest&, SegmentId)>& visit) {
  constexpr size_t kEntriesPerRead = 4096;
  std::string after;
  for (;;) {
    if (context.Expired()) return MakeError(ErrorCode::kInterrupted, "the look at the chunks was stopped");
    CAIRNFS_ASSIGN_OR_RETURN(auto entries, impl_->index_.ReadEntries(/*snapshot=*/nullptr, &after, kEntriesPerRead));
    if (entries.empty()) return {};
    for (const ChunkIndex::Entry& entry : entries) visit(entry.digest, entry.location.segment);
  }
}

std::vector<bool> LocalChunkStore::AreUnknown(std::span<const Digest> digests) {
  std::vector<bool> are_unknown;
  for (const Digest& digest : digests) {
    const auto found = impl_->index_.Find(digest);
    are_unknown.push_back(!impl_->index_.IsInUse(digest) && found.ok() && !found->has_value());
  }
  return are_unknown;
}

void LocalChunkStore::AbortCollection() { impl_->index_.EndRecording(); }
Status LocalChunkStore::Sweep(const Context& context, const LiveTest& live, const SweepOptions& options,
                              SweepProgress& progress) {
  return impl_->Sweep(context, live, options, progress);
}

Result<LiveTotals> LocalChunkStore::CountLive(const Context& context, const LiveTest& live) {
  return impl_->CountLive(context, live);
}

StoreStats LocalChunkStore::Stats() const { return impl_->Stats(); }
uint64_t LocalChunkStore::DiskFreeBytes() const { return impl_->space_.DiskFreeBytes(); }
uint64_t LocalChunkStore::AvailableBytes() const { return impl_->space_.AvailableBytes(); }
uint64_t LocalChunkStore::MetadataRoom(uint64_t unwritten_bytes, Leaves leaves) const {
  return impl_->MetadataRoom(unwritten_bytes, leaves);
}
uint64_t LocalChunkStore::MetadataBytes() const { return impl_->space_.MetadataBytes(); }
uint64_t LocalChunkStore::reserve_bytes() const { return impl_->space_.reserve_bytes(); }
size_t LocalChunkStore::cache_bytes_max() const { return impl_->options_.cache_bytes_max; }

bool LocalChunkStore::TryReserve(uint64_t bytes) { return impl_->space_.TryReserve(bytes); }
uint64_t LocalChunkStore::ReservedBytes() const { return impl_->space_.ReservedBytes(); }
void LocalChunkStore::ReleaseReservation(uint64_t bytes) { impl_->space_.ReleaseReservation(bytes); }

Status LocalChunkStore::Check(const Context& context, const std::function<void(const CheckProblem&)>& report,
                              std::atomic<uint64_t>* bytes_read) {
  std::atomic<uint64_t> unread{0};
  return impl_->Check(context, report, bytes_read != nullptr ? *bytes_read : unread);
}

void LocalChunkStore::SetDamageHandler(std::function<void(const Digest&)> handler) {
  MutexLock lock(impl_->damage_mutex_);
  impl_->on_damage_ = std::move(handler);
}

Result<uint64_t> LocalChunkStore::RemoveUnusedFiles(io::Disk& disk) { return SegmentSet::RemoveUnused(disk); }

void LocalChunkStore::DropCache() { impl_->cache_.Clear(); }
ChunkCache& LocalChunkStore::cache() { return impl_->cache_; }
std::optional<ChunkData> LocalChunkStore::FindCached(const Digest& digest) {
  return impl_->reader_.FindCached(digest, Reader::kThisHost);
}

}  // namespace cairnfs::store
