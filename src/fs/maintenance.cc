#include "fs/maintenance.h"

#include <algorithm>
#include <bit>
#include <future>
#include <memory>
#include <utility>

#include "fs/metadata_room.h"

namespace cairnfs::fs {

Result<FsSpace> Maintenance::GetSpace() {
  store::StoreStats stats = at_.parts.local_chunks.Stats();
  FsSpace space{};
  const uint64_t used = stats.segment_bytes - std::min(stats.segment_bytes, stats.free_segment_bytes);
  space.available_bytes = space.free_bytes = stats.available_bytes;
  space.total_bytes = used + stats.available_bytes;
  if (const auto all = at_.copies.Space()) {
    space.total_bytes = all->total_bytes;
    space.available_bytes = space.free_bytes = all->available_bytes;
  }
  const uint64_t stored = space.total_bytes - std::min(space.total_bytes, space.free_bytes);
  const uint64_t in_trash = at_.trash.BytesStored(at_.totals, stored);
  space.available_bytes += in_trash;
  space.free_bytes += in_trash;
  at_.totals.AddInodes(space);
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

FsTraffic Maintenance::GetTraffic() const {
  const store::LocalChunkStore& chunks = at_.parts.local_chunks;
  const store::StoreStats stats = chunks.Stats();
  const uint64_t reserved = chunks.ReservedBytes();
  return {.write_bytes_total = parts_.writer.bytes_total(),
          .read_bytes_total = parts_.reader.bytes_total(),
          .unsaved_bytes = reserved + stats.pending_bytes,
          .unwritten_bytes = reserved + stats.staged_bytes};
}

FsStatus Maintenance::GetStatus() const {
  FsStatus status{};
  status.store = at_.parts.local_chunks.Stats();
  at_.totals.Fill(status);
  status.dirty_bytes += status.store.pending_bytes;
  status.trash_entries = at_.trash.entries();
  status.trash_bytes = at_.trash.bytes();
  status.open_files = parts_.open_files.count();
  const FsTraffic traffic = GetTraffic();
  status.write_bytes_total = traffic.write_bytes_total;
  status.read_bytes_total = traffic.read_bytes_total;
  status.sync_rounds_total = at_.rounds.rounds_total();
  status.sync_points_total = at_.rounds.requests_total();
  const io::BufferPool& pool = at_.parts.pool;
  status.pool_buffers = pool.count();
  status.pool_buffers_free = pool.free_count();
  status.pool_buffers_touched = pool.touched_count();
  status.passthrough = at_.backing_files.status();
  status.collecting = parts_.collection.running();
  status.live = parts_.collection.last_count();
  status.failing = at_.rounds.failing();
  status.last_error = at_.rounds.last_error();
  const std::string collection_error = parts_.collection.last_error();
  status.collection_failed = !collection_error.empty();
  if (status.last_error.empty() && status.collection_failed) {
    status.last_error = "collection failed: " + collection_error;
  }
  if (status.last_error.empty()) status.last_error = status.store.last_error;
  if (const auto end = stop_waits_end_.load(); end != Clock::time_point()) {
    const auto left = std::chrono::ceil<std::chrono::seconds>(end - Clock::Now());
    status.stop = {at_.copies.DescribeLackOfNodes(), std::max(left, std::chrono::seconds(0))};
  }
  return status;
}

CollectionStatus Maintenance::GetCollection() const {
  CollectionStatus status = parts_.collection.Status();
  status.inodes_total = at_.totals.inode_count();
  return status;
}

Result<std::vector<MetadataOwner>> Maintenance::GetMetadataOwners(const Context& context) const {
  return CountByOwner(context, at_.parts.kv);
}

Status Maintenance::CheckNoneFailed() {
  const auto failed = at_.rounds.FailedFiles();
  if (failed.empty()) return {};
  const auto& [inode, why] = *failed.begin();
  return why.WithContext("inode " + std::to_string(inode.value));
}

void Maintenance::Sync(Done<void> done) {
  at_.rounds.Request(
      [this, done = std::move(done)](const Status& synced) { done(synced.ok() ? CheckNoneFailed() : synced); });
}

void Maintenance::Change(const FsOptions& options, Done<void> done) {
  at_.rounds.SetInterval(options.flush_interval_ms);
  parts_.collection.SetRate(options.collect_bytes_per_second_max);
  parts_.reader.SetUpdateAtime(options.update_atime);
  read_only_ = options.read_only;
  at_.commits.SetReadOnly(options.read_only);
  at_.policies.SetReadOnly(options.read_only);
  at_.tickets.SetReadOnly(options.read_only);
  if (!options.read_only) {
    at_.trash.SetReadOnly(false);
    return done(parts_.collection.Resume());
  }
  auto end_changes = [this, done = std::move(done)] {
    at_.trash.SetReadOnly(true);
    if (Status held = parts_.collection.Hold(); !held.ok()) return done(held);
    Sync(done);
  };
  if (!at_.room.HoldsTrash()) return end_changes();
  // What was accepted may find room only once the trash is emptied. What it lacks then, the round after that tells.
  Sync([this, end_changes](const Status&) { at_.waiters.Post(end_changes); });
}

void Maintenance::SyncBeforeStop(Clock::time_point until) {
  if (at_.room.HoldsTrash()) static_cast<void>(SyncWithin(Context().WithDeadline(until)));
}

Status Maintenance::SyncWithin(const Context& context) {
  auto promise = std::make_shared<std::promise<Status>>();
  auto synced = promise->get_future();
  const auto late = [] { return MakeError(ErrorCode::kUnavailable, "the time was up"); };
  at_.rounds.Request(at_.waits.Within(context, late, [promise](const Status& status) { promise->set_value(status); }));
  return synced.get();
}

Status Maintenance::CheckClosed(const PlacesToCome& begun) {
  const PlacesToCome now = parts_.atomic_files.GetPlacesToCome();
  const auto count =
      std::count_if(begun.begin(), begun.end(), [&](const auto& file) { return now.contains(file.first); });
  if (count == 0) return {};
  return MakeError(ErrorCode::kBusy, std::to_string(count) + (count == 1 ? " file that is" : " files that are") +
                                         " to appear whole, and not closed yet");
}

Status Maintenance::Drain(const Context& context) {
  constexpr std::chrono::seconds kAgainAfter{1};
  const SyncRounds::ClosedFirst closed_first(at_.rounds);
  const PlacesToCome begun = parts_.atomic_files.GetPlacesToCome();
  for (;;) {
    const Status closed = CheckClosed(begun);  // first: the sync takes the name of one that is closed by now
    Status synced = SyncWithin(context);
    if (synced.ok()) synced = CheckNoneFailed();
    if (synced.ok()) synced = closed;
    if (synced.ok()) return synced;
    const ErrorCode code = synced.error().code;
    const bool may_pass = code == ErrorCode::kNoSpace || code == ErrorCode::kUnavailable || code == ErrorCode::kBusy;
    if (!may_pass || !context.Sleep(kAgainAfter)) return synced;
  }
}

Status Maintenance::SyncBelow(InodeId inode, const Caller& caller) {
  CAIRNFS_RETURN_IF_ERROR(SyncWithin(caller.context));
  CAIRNFS_RETURN_IF_ERROR(at_.copies.CheckBelow(caller.context, inode));
  return CheckNoneFailed();
}

void Maintenance::SyncNames(Done<void> done) { parts_.changes.SyncNames(std::move(done)); }

void Maintenance::Collect(Done<CollectionStatus> done) {
  if (read_only_) {
    return done(
        MakeError(ErrorCode::kPermission, "the filesystem is mounted read_only, and nothing of it is collected"));
  }
  at_.totals.CountAgain();
  parts_.collection.Request(std::move(done));
}

}  // namespace cairnfs::fs
