#include "fs/local_publisher.h"

#include <algorithm>
#include <cassert>
#include <iterator>

#include "base/clock.h"
#include "base/failpoint.h"
#include "meta/commit_record.h"
#include "meta/ticket_records.h"

namespace cairnfs::fs {
namespace {

Failpoint round_published("fs.round_published", Failpoint::Kind::kKill);
Failpoint round_data_synced("fs.round_data_synced", Failpoint::Kind::kKill);
Failpoint round_flushed("fs.round_flushed", Failpoint::Kind::kKill);
// Leaves out the sync of chunk data before names are flushed: the bug that the whole design guards against.
Failpoint round_data_sync("fs.round_data_sync", Failpoint::Kind::kSkippable);
// As on a disk that answers no more: the round does not come to its end.
Failpoint round_answer("fs.round_answer", Failpoint::Kind::kSkippable);
constexpr std::chrono::hours kNoAnswer{24};

// Memory that names may take before they are flushed: past it names wait, past a quarter of it a round is asked for. On
// a disk with little room it is less: what is not flushed yet has no room for sure.
constexpr size_t kUnflushedBytesMax = 64 * kMiB;
constexpr size_t kUnflushedBytesMin = 2 * kMiB;
constexpr size_t kUnflushedShareOfFree = 16;

// A round of so little is run by the thread that asks for it: it takes some milliseconds.
constexpr uint64_t kBytesRunOnCallerMax = 8 * kMiB;

// A round that takes one takes an eighth to a quarter of what waits.
constexpr size_t kFreezePointsMax = 8;

size_t UnflushedBytesMax(const store::LocalChunkStore& chunks) {
  return std::clamp<uint64_t>(chunks.DiskFreeBytes() / kUnflushedShareOfFree, kUnflushedBytesMin, kUnflushedBytesMax);
}

}  // namespace

void LocalPublisher::BeginOperation() {
  MutexLock turn(turnstile_);
  gate_.lock_shared();
}

// What removes names is let in for longer, because it makes room.
Publisher::Admission LocalPublisher::Admit(NameChange change) const {
  const size_t unflushed_bytes = kv_.UnflushedBytes(), bytes_max = UnflushedBytesMax(chunks_);
  if (unflushed_bytes < bytes_max / 4) return Admission::kAtOnce;
  const bool removes = change == NameChange::kRemoves;
  return unflushed_bytes < bytes_max * (removes ? 2 : 1) ? Admission::kWithRound : Admission::kAfterRound;
}

bool LocalPublisher::AdmitsWhileFailing(NameChange change) const {
  return change == NameChange::kRemoves && kv_.UnflushedBytes() < 2 * kUnflushedBytesMax;
}

// The record of a commit comes with names; what is added to it is waited for by nobody.
bool LocalPublisher::HasUnflushedNames() const {
  return kv_.HasUnflushed("", "\xff",
                          [](std::string_view key, const auto&) { return !meta::IsOfCommitOrRefusal(key); });
}

bool LocalPublisher::MayRunOnCaller() const {
  return chunks_.ReservedBytes() + kv_.UnflushedBytes() <= kBytesRunOnCallerMax;
}

bool LocalPublisher::IsDiskFailure(const Error& error) const {
  return error.code == ErrorCode::kIo || error.code == ErrorCode::kFailed || error.code == ErrorCode::kCorrupt ||
         error.code == ErrorCode::kExhausted || error.code == ErrorCode::kPermission;  // it went read-only
}

bool LocalPublisher::NoteClosed(uint64_t bytes) {
  MutexLock lock(points_mutex_);
  closed_bytes_ += bytes;
  return closed_bytes_ >= step_bytes_ && !std::exchange(has_asked_for_point_, true);
}

void LocalPublisher::AddFreezePoint() {
  MutexLock turn(turnstile_);
  std::unique_lock gate(gate_);
  {
    MutexLock lock(points_mutex_);
    closed_bytes_ = 0;
    has_asked_for_point_ = false;
    if (freeze_points() == kFreezePointsMax) {
      for (size_t i = kFreezePointsMax; i >= 2; i -= 2) DropFreezePoint(i - 2);
      step_bytes_ *= 2;
    }
  }
  // Nobody drops any while the gate is held.
  kv_.AddFreezePoint();
  files_.AddFreezePoint();
}

void LocalPublisher::DropFreezePoint(size_t index) {
  kv_.DropFreezePoint(index);
  files_.DropFreezePoint(index);
}

void LocalPublisher::DropFreezePoints() {
  MutexLock lock(points_mutex_);
  while (freeze_points() > 0) DropFreezePoint(0);
  step_bytes_ = step_bytes_min_;
}

std::vector<InodePtr> LocalPublisher::Freeze(DirtyFiles::Selection selection) {
  MutexLock turn(turnstile_);
  std::unique_lock gate(gate_);
  if (files_.empty() && !kv_.HasUnflushed()) return {};
  auto& which = selection.which;
  if (which == DirtyFiles::Which::kToPoint && freeze_points() == 0) which = DirtyFiles::Which::kClosed;
  if (which == DirtyFiles::Which::kToPoint) {
    kv_.BeginFrozenToPoint();
    MutexLock lock(points_mutex_);
    if (freeze_points() == 0) step_bytes_ = step_bytes_min_;
  } else {
    DropFreezePoints();
    kv_.BeginFrozen();
  }
  is_open_ = true;
  return files_.TakeOver(selection);
}

void LocalPublisher::Open(const DirtyFiles::Selection& selection) {
  for (const InodePtr& inode : Freeze(selection)) table_.Unhold(inode);
}

Status LocalPublisher::Publish(const InodePtr& inode, uint64_t round_number, Batch& batch) {
  MutexLock lock(inode->mutex);
  CAIRNFS_ASSIGN_OR_RETURN(meta::FileRecord record, files_.MakeRecord(inode));
  Content& content = *inode->content;
  content.FoldNewBytes(record.allocated_bytes);
  record.unique_bytes = content.unique_bytes;
  batch.writes.push_back({meta::FileKey(inode->id), record.Encode(), 0});
  if (auto usage = UsageWrite(*inode, record)) batch.writes.push_back(*std::move(usage));
  content.quota_is_set = false;
  content.published_size = record.size;
  std::move(content.pins.begin(), content.pins.end(), std::back_inserter(batch.pins));
  content.pins.clear();
  content.in_round = false;
  content.flushed_with = round_number;
  content.changed = content.overlay.HasUnstored() || !content.flying.empty();
  const uint64_t bytes = std::min(content.accepted_bytes, record.size);
  content.accepted_bytes = content.changed ? content.DirtyBytes() : 0;
  if (content.changed) {
    files_.Requeue(inode);
  } else {
    content.unrecorded = true;
    batch.whole.push_back(inode);
  }
  inode->changed_state.NotifyAll();
  MutexLock list(mutex_);
  unflushed_[inode->id] += bytes;
  return {};
}

void LocalPublisher::PublishTaken(uint64_t round_number) {
  Batch batch;
  for (const InodePtr& inode : files_.taken()) {
    Status published = Publish(inode, round_number, batch);
    if (published.ok()) continue;
    files_.shortage = published.error().WithContext("recipe of inode " + std::to_string(inode->id.value));
  }
  kv_.CommitLate(batch.writes);
  files_.ClearTaken();
  batch.pins.clear();
  for (const InodePtr& inode : batch.whole) files_.Release(inode);
}

Status LocalPublisher::Finish(const Round& round) {
  assert(is_open_);
  files_.Drain();
  PublishTaken(round.number);
  if (files_.bytes_lacked) kv_.CommitLate({{meta::BytesLackKey(), std::string(), 0}});  // with what lacks them
  round_published.Pass();
  if (round_answer.PassOrSkip()) Clock::SleepFor(kNoAnswer);
  // Somebody waits for it: what is little goes with the names. Segments are synced by rounds that nobody waits for.
  if (!round_data_sync.PassOrSkip()) {
    CAIRNFS_RETURN_IF_ERROR(round.is_awaited ? chunks_.SyncWithEngine() : chunks_.Sync());
  }
  round_data_synced.Pass();
  CAIRNFS_RETURN_IF_ERROR(kv_.FlushFrozen());
  round_flushed.Pass();
  is_open_ = false;
  MutexLock lock(mutex_);
  unflushed_.clear();
  return {};
}

// Small chunks go to their segment, or the next start would have to see to it.
void LocalPublisher::Stop() { static_cast<void>(chunks_.Sync().ok()); }

}  // namespace cairnfs::fs
