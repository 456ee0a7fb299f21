// Starting and stopping.
#include "fs/filesystem.h"

#include <algorithm>
#include <thread>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/machine_limits.h"
#include "fs/impl.h"
#include "fs/scan.h"

namespace cairnfs::fs {
namespace {

constexpr unsigned kSpaceWaiterThreads = 8;
constexpr unsigned kBlockingThreads = 32;
constexpr unsigned kRoundWaitThreads = 32;

Failpoint start_orphans("fs.start_orphans", Failpoint::Kind::kKill);

}  // namespace

FileSystem::Impl::Impl(const Parts& the_parts, const FsOptions& the_options, uint64_t owed_bytes)
    : parts(the_parts),
      options(the_options),
      read_only(options.read_only),
      update_atime(options.update_atime && !parts.cluster),
      table([this](const InodePtr& inode) {
        if (orphans != nullptr) return orphans->Add(inode->id);
        // More may have been published since it was unlinked. Its record goes with the next round.
        const uint64_t freed_bytes = std::max<uint64_t>(inode->freed_bytes, record_totals.AllocatedBytesOf(inode->id));
        rounds->AddOrphan(inode);
        NoteFreed(freed_bytes);
      }),
      record_totals(parts.local_kv) {
  unsigned cores = std::max(2u, UsableCores());
  workers = std::make_unique<TaskQueue>("cairn-worker", options.worker_threads > 0 ? options.worker_threads : cores);
  waiters = std::make_unique<TaskQueue>("cairn-waiter", std::max(4u, options.waiting_threads));
  space_waiters = std::make_unique<TaskQueue>("cairn-space", kSpaceWaiterThreads);
  metadata_room = std::make_unique<MetadataRoom>(parts, *waiters, stop.get_token());
  if (parts.cluster) {
    host = std::make_unique<ClusterHost>(*parts.cluster, parts.kv, parts.names, options.durability);
    blocking = std::make_unique<BlockingCalls>("cairn-blocking", kBlockingThreads);
    round_waits = std::make_unique<BlockingCalls>("cairn-roundwait", kRoundWaitThreads);
  }
  error_names = std::make_unique<ErrorNames>(parts.kv, parts.names, *waiters, parts.cluster.has_value());
  Streams::Hooks hooks;
  hooks.freed = [this](uint64_t bytes) { collector->NoteFreed(bytes); };  // little each time, and often
  hooks.lost = [this](const InodePtr& inode) {
    inode->mutex.AssertHeld();
    NoteLost(inode);
  };
  hooks.failed = [this](InodeId inode) { error_names->Note(inode); };
  hooks.no_room = [this] {
    no_room_at = Clock::Now();
    found_no_room = true;
    collector->NoteNoRoom();
  };
  streams = std::make_unique<Streams>(parts.chunks, parts.local_chunks, parts.pool, parts.chunk_params, *workers,
                                      std::move(hooks));
  rounds = std::make_unique<SyncRounds>(parts, host.get(), *streams, table, *waiters,
                                        SyncRounds::Options{options.flush_interval_ms});
  collector = std::make_unique<Collector>(parts.kv, host ? nullptr : &parts.local_chunks, *rounds, options, owed_bytes);
  checker = std::make_unique<Checker>(parts, *rounds);
  wait_watcher = std::thread([this] { WatchWaits(); });
}

void FileSystem::Impl::End() {
  if (!wait_watcher.joinable()) return;
  // The chunk store's threads answer reads, and outlive the session that takes the answers: none may still be in there.
  while (reads_running.load() > 0) Clock::SleepFor(std::chrono::milliseconds(1));
  stop.request_stop();
  {
    MutexLock lock(waits_mutex);
    waits_stopping = true;
    waits_wake.NotifyAll();
  }
  wait_watcher.join();
  checker->Stop();
  collector->Stop();
  error_names->Stop();
  space_waiters.reset();
  if (blocking) blocking->Stop();
  if (round_waits) round_waits->Stop();
  waiters.reset();
  workers.reset();
}

// For df -i. Beside the work of others: what they make and remove meanwhile is counted as it comes, and may for that
// one time be counted twice.
void FileSystem::Impl::CountInodes() {
  static_cast<void>(ScanPrefix(parts.kv, "I", stop.get_token(), [this](const kv::KvEntry&) {
    inode_count++;
    return true;
  }));
}

FileSystem::Impl::~Impl() { End(); }

bool FileSystem::blocks() const { return impl_->host != nullptr; }

void FileSystem::RunBlocking(std::function<void()> task) {
  if (impl_->blocking == nullptr) return task();
  static_cast<void>(impl_->blocking->Post(std::move(task)));
}

void FileSystem::RunBlocking(std::function<void()> task, std::function<bool()> is_killed,
                             std::function<void(const Error&)> refused) {
  if (impl_->blocking == nullptr) return task();
  impl_->blocking->Post(std::move(task), std::move(is_killed), std::move(refused));
}

FileSystem::FileSystem(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

FileSystem::~FileSystem() {
  if (impl_ != nullptr) static_cast<void>(Stop());
}

FileSystem::Parts::Parts(io::BufferPool& the_pool, kv::LocalKvStore& local, kv::KvEngine& the_engine,
                         meta::Namespace& the_names, store::LocalChunkStore& the_chunks,
                         const chunking::ChunkParams& params)
    : pool(the_pool),
      kv(local),
      local_kv(&local),
      engine(the_engine),
      names(the_names),
      chunks(the_chunks),
      local_chunks(the_chunks),
      chunk_params(params) {}

FileSystem::Parts::Parts(io::BufferPool& the_pool, kv::KvStore& shared, kv::KvEngine& the_engine,
                         meta::Namespace& the_names, store::LocalChunkStore& the_chunks,
                         const chunking::ChunkParams& params, const ClusterParts& the_cluster)
    : pool(the_pool),
      kv(shared),
      local_kv(nullptr),
      engine(the_engine),
      names(the_names),
      chunks(the_cluster.chunks),
      local_chunks(the_chunks),
      chunk_params(params),
      cluster(the_cluster) {}

Result<std::unique_ptr<FileSystem>> FileSystem::Start(const Parts& parts, const FsOptions& options) {
  if (parts.cluster) {
    auto shared = std::make_unique<Impl>(parts, options, 0);
    if (Status began = shared->StartShared(); !began.ok()) {
      static_cast<void>(shared->rounds->Stop());
      return began.error();
    }
    Impl* started = shared.get();
    parts.pool.SetPressureCallback([started](auto without_release) { started->OnPressure(without_release); });
    return std::unique_ptr<FileSystem>(new FileSystem(std::move(shared)));
  }
  CAIRNFS_ASSIGN_OR_RETURN(std::vector<InodeId> orphans, parts.names.ListOrphans());
  if (!orphans.empty()) {
    spdlog::info("removing {} files that were deleted while open", orphans.size());
    CAIRNFS_RETURN_IF_ERROR(parts.names.RemoveOrphans(orphans));
    start_orphans.Pass();
  }
  CAIRNFS_ASSIGN_OR_RETURN(uint64_t owed_bytes, Collector::TakeOwed(parts.kv, options));
  if (!orphans.empty()) owed_bytes = std::max(owed_bytes, options.collect_after_bytes);
  auto impl = std::make_unique<Impl>(parts, options, owed_bytes);
  FileSystem::Impl* raw = impl.get();
  impl->waiters->Post([raw] {
    raw->record_totals.Count(raw->stop.get_token());
    raw->CountInodes();
  });
  parts.pool.SetPressureCallback([raw](auto without_release) { raw->OnPressure(without_release); });
  return std::unique_ptr<FileSystem>(new FileSystem(std::move(impl)));
}

Status FileSystem::Stop() {
  if (impl_ == nullptr) return {};
  impl_->parts.pool.SetPressureCallback({});
  impl_->StopShared();
  impl_->stop.request_stop();  // whoever waits for the first count of records has what there is
  impl_->checker->Stop();
  impl_->collector->Stop();
  impl_->AskForMarked();
  static_cast<void>(
      impl_->rounds->RequestAndWait(SyncRounds::Scope::kNames));  // which may replace stored bytes, and so free them
  if (auto left = impl_->collector->LeaveOwed(); !left.ok()) {
    spdlog::warn("what is to be collected is not noted, so the next start collects: {}", left.error().message);
  }
  // Nobody uses a file any more: what is open was left behind by a lazy unmount, and what was unlinked goes.
  Status status = impl_->rounds->Stop();
  impl_->End();  // what is still at work after its answer finds everything in place
  impl_.reset();
  return status;
}

}  // namespace cairnfs::fs
