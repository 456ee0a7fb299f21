// What the filesystem tells of itself.
#include <algorithm>
#include <bit>
#include <future>
#include <memory>

#include "base/clock.h"
#include "base/log.h"
#include "coherence/cluster_locks.h"
#include "fs/impl.h"
#include "fs/scan.h"

namespace cairnfs::fs {
namespace {

// Of a cluster, whose metadata lies elsewhere: more inodes than anyone makes; numbers are 64 bits wide.
constexpr uint64_t kInodesMax = uint64_t{1} << 40;
// Of a host alone: with so much of metadata it is counted how many more there is room for. Most take less.
constexpr uint64_t kBytesPerInode = 1024;

constexpr int kTriesMax = 4;

}  // namespace

coherence::ClusterLocks* FileSystem::locks() const { return impl_->parts.locks; }

void FileSystem::EndWaits() {
  impl_->waits_ended = true;
  if (impl_->parts.locks != nullptr) impl_->parts.locks->EndWaits();
  impl_->parts.chunks.EndWaits();
}

Status FileSystem::CheckSession(HandleId handle_id) const {
  if (impl_->host == nullptr) return {};
  HandlePtr handle = impl_->handles.Find(handle_id);
  if (!handle) return MakeError(ErrorCode::kStale, "the file is not open");
  if (handle->session == impl_->host->session()) return {};
  return SessionLost("its locks are lost, open the file again");
}

void FileSystem::PublishBeforeUnlock(HandleId handle_id, std::function<void()> then, const Caller& caller) {
  HandlePtr handle = impl_->host == nullptr ? nullptr : impl_->handles.Find(handle_id);
  if (!handle) return then();
  {
    MutexLock lock(handle->inode->mutex);
    Content* content = handle->inode->content.get();
    if (content == nullptr || !content->changed) return then();
    content->must_publish = content->shared().is_asked_for = true;
  }
  auto answer = [this, handle, then = std::move(then)](const Status& round) {
    // Whoever unlocks is not told of an error: fsync and close tell it.
    const Status outcome = impl_->CheckOutcome(handle->inode, handle->session, round);
    if (!outcome.ok()) {
      spdlog::warn("inode {}: unlocked before what was written could be published: {}", handle->inode->id.value,
                   outcome.error().message);
    }
    then();
  };
  impl_->rounds->Request(impl_->UnlessKilled(caller, std::move(answer)), SyncRounds::Scope::kClosed);
}

void FileSystem::NoteLocked(HandleId handle_id) {
  HandlePtr handle = impl_->host == nullptr ? nullptr : impl_->handles.Find(handle_id);
  if (!handle) return;
  MutexLock lock(handle->inode->mutex);
  handle->inode->others_noticed++;
}

Result<FsSpace> FileSystem::GetSpace() {
  store::StoreStats stats = impl_->parts.local_chunks.Stats();
  FsSpace space{};
  uint64_t used = stats.segment_bytes - std::min(stats.segment_bytes, stats.free_segment_bytes);
  space.available_bytes = space.free_bytes = stats.available_bytes;
  space.total_bytes = used + stats.available_bytes;
  if (const auto& ask = impl_->parts.cluster_space) {
    if (const auto all = ask()) {
      space.total_bytes = all->total_bytes;
      space.available_bytes = space.free_bytes = all->available_bytes;
    }
  }
  const auto inode_count = static_cast<uint64_t>(std::max<int64_t>(0, impl_->inode_count.load()));
  if (impl_->host == nullptr) {
    space.inodes_free = impl_->metadata_room->BytesForUsers() / kBytesPerInode;
    space.inodes_total = inode_count + space.inodes_free;
  } else {
    space.inodes_total = kInodesMax;
    space.inodes_free = kInodesMax - inode_count;
  }
  return space;
}

FsSpace FsSpace::Rounded() const {
  constexpr uint64_t kUnitsOfADisk = 1024;
  const uint64_t unit = std::bit_ceil(std::max<uint64_t>(total_bytes / kUnitsOfADisk, kPageBytes));
  FsSpace rounded = *this;
  for (uint64_t* bytes : {&rounded.total_bytes, &rounded.free_bytes, &rounded.available_bytes}) {
    *bytes = AlignDown(*bytes, unit);
  }
  // They are counted by the same room. Few must not look like none, so their unit is a share of what is left.
  constexpr uint64_t kUnitsOfInodes = 16;
  const uint64_t inodes_hidden = inodes_free % std::bit_ceil(std::max<uint64_t>(inodes_free / kUnitsOfInodes, 1));
  rounded.inodes_free -= inodes_hidden;
  rounded.inodes_total -= inodes_hidden;
  return rounded;
}

// What files in memory hold beyond their records, modulo 2^64 (files may have shrunk); and into `dirty_bytes` what of
// them is not stored yet.
uint64_t FileSystem::Impl::UnrecordedBytes(uint64_t& dirty_bytes) {
  uint64_t unrecorded = 0;
  dirty_bytes = 0;
  table.ForEachHeld([&](const InodePtr& inode) {
    uint64_t allocated = 0;
    {
      MutexLock lock(inode->mutex);
      if (!inode->content) return;
      const Content& content = *inode->content;
      for (const auto& [start, run] : content.overlay.runs()) dirty_bytes += run.length - run.stored;
      for (const auto& [id, chunk] : content.flying) dirty_bytes += chunk->size;
      if (!content.changed && !content.unrecorded) return;
      allocated = content.AllocatedBytes();
    }
    unrecorded += allocated - record_totals.AllocatedBytesOf(inode->id);
  });
  return unrecorded;
}

// Of a namespace that others change too, the sums are as of a count now and then, which somebody who wants to know
// starts.
void FileSystem::Impl::CountShared() {
  constexpr int64_t kCountEveryMs = 600'000;
  using namespace std::chrono;
  const int64_t now_ms = duration_cast<milliseconds>(Clock::Now().time_since_epoch()).count();
  int64_t counted_ms = shared_counted_ms;
  if (counted_ms >= 0 && now_ms - counted_ms < kCountEveryMs) return;
  if (!shared_counted_ms.compare_exchange_strong(counted_ms, now_ms)) return;
  waiters->Post([this] {
    uint64_t bytes = 0;
    int64_t inodes = 0;
    Status records = ScanPrefix(parts.kv, "D", stop.get_token(), [&](const kv::KvEntry& entry) {
      auto record = meta::FileRecord::Decode(entry.value);
      if (record.ok()) bytes += record->allocated_bytes;
      return true;
    });
    Status counted = ScanPrefix(parts.kv, "I", stop.get_token(), [&](const kv::KvEntry&) {
      inodes++;
      return true;
    });
    if (!records.ok() || !counted.ok()) return;
    shared_bytes = bytes;
    inode_count = inodes;
  });
}

FsTraffic FileSystem::GetTraffic() const { return {impl_->write_bytes_total, impl_->read_bytes_total}; }

FsStatus FileSystem::GetStatus() const {
  FsStatus status{};
  status.store = impl_->parts.local_chunks.Stats();
  status.inode_count = static_cast<uint64_t>(std::max<int64_t>(0, impl_->inode_count.load()));
  if (impl_->host == nullptr) status.metadata_room_bytes = impl_->metadata_room->BytesForUsers();
  if (impl_->host != nullptr) impl_->CountShared();
  for (int tries = 1;; tries++) {
    // A record that is published between the two sums would be missing in both.
    const uint64_t recorded = impl_->record_totals.AllocatedBytes();
    status.logical_bytes = recorded + impl_->UnrecordedBytes(status.dirty_bytes);
    if (recorded == impl_->record_totals.AllocatedBytes() || tries == kTriesMax) break;
  }
  if (impl_->host != nullptr) {
    status.logical_bytes = impl_->shared_bytes;
    MutexLock lock(impl_->failed_commits_mutex);
    status.failed_commits.assign(impl_->failed_commits.begin(), impl_->failed_commits.end());
  }
  if (static_cast<int64_t>(status.logical_bytes) < 0) status.logical_bytes = 0;
  status.dirty_bytes += status.store.pending_bytes;
  status.open_files = impl_->open_files;
  const FsTraffic traffic = GetTraffic();
  status.write_bytes_total = traffic.write_bytes_total;
  status.read_bytes_total = traffic.read_bytes_total;
  status.sync_rounds_total = impl_->rounds->rounds_total();
  status.sync_points_total = impl_->rounds->requests_total();
  status.pool_buffers = impl_->parts.pool.count();
  status.pool_buffers_free = impl_->parts.pool.free_count();
  status.pool_buffers_touched = impl_->parts.pool.touched_count();
  status.collecting = impl_->collector->running();
  status.live = impl_->collector->last_count();
  status.failing = impl_->rounds->failing();
  status.last_error = impl_->rounds->last_error();
  const std::string collection_error = impl_->collector->last_error();
  status.collection_failed = !collection_error.empty();
  if (status.last_error.empty() && status.collection_failed) {
    status.last_error = "collection failed: " + collection_error;
  }
  if (status.last_error.empty()) status.last_error = status.store.last_error;
  return status;
}

Result<std::vector<MetadataOwner>> FileSystem::GetMetadataOwners() const {
  return CountByOwner(impl_->parts.kv, impl_->stop.get_token());
}

Status FileSystem::Impl::CheckNoneLeftBehind() {
  const auto left = rounds->LeftBehind();
  if (left.empty()) return {};
  const auto& [inode, why] = *left.begin();
  return why.WithContext("inode " + std::to_string(inode.value));
}

void FileSystem::Sync(Done<void> done) {
  impl_->rounds->Request([this, done = std::move(done)](const Status& synced) {
    done(synced.ok() ? impl_->CheckNoneLeftBehind() : synced);
  });
}

void FileSystem::Change(const FsOptions& options, Done<void> done) {
  impl_->rounds->SetInterval(options.flush_interval_ms);
  impl_->collector->SetRate(options.collect_bytes_per_second_max);
  impl_->update_atime = options.update_atime && impl_->host == nullptr;
  impl_->read_only = options.read_only;
  Status collects = options.read_only ? impl_->collector->Hold() : impl_->collector->Resume();
  if (!collects.ok() || !options.read_only) return done(collects);
  Sync(std::move(done));
}

Status FileSystem::SyncBelow(InodeId inode, const Caller& caller) {
  auto promise = std::make_shared<std::promise<Status>>();
  auto synced = promise->get_future();
  auto answer = impl_->UnlessKilled(caller, [promise](const Status& status) { promise->set_value(status); });
  impl_->rounds->Request(std::move(answer));
  CAIRNFS_RETURN_IF_ERROR(synced.get());
  if (impl_->host != nullptr) CAIRNFS_RETURN_IF_ERROR(impl_->CheckPublishedBelow(inode));
  return impl_->CheckNoneLeftBehind();
}

void FileSystem::SyncNames(Done<void> done) {
  if (impl_->host != nullptr) return done({});
  impl_->rounds->Request(std::move(done), SyncRounds::Scope::kNames);
}

void FileSystem::Collect(Done<CollectionStatus> done) {
  if (impl_->read_only) {
    return done(
        MakeError(ErrorCode::kPermission, "the filesystem is mounted read_only, and nothing of it is collected"));
  }
  impl_->collector->Request(std::move(done));
}

void FileSystem::CountLive(Done<LiveCount> done) { impl_->collector->RequestCount(std::move(done)); }

CollectionStatus FileSystem::GetCollection() const { return impl_->collector->Status(); }

void FileSystem::Check(const std::stop_token& stop, Done<CheckReport> done) {
  impl_->checker->Request(stop, std::move(done));
}

CheckProgress FileSystem::GetCheckProgress() const { return impl_->checker->progress(); }

}  // namespace cairnfs::fs
