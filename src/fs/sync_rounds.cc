#include "fs/sync_rounds.h"

#include <pthread.h>

#include <algorithm>
#include <future>

#include "base/failpoint.h"
#include "base/log.h"

namespace cairnfs::fs {
namespace {

Failpoint round_opened("fs.round_opened", Failpoint::Kind::kKill);
Failpoint round_drained("fs.round_drained", Failpoint::Kind::kKill);
Failpoint round_published("fs.round_published", Failpoint::Kind::kKill);
Failpoint round_data_synced("fs.round_data_synced", Failpoint::Kind::kKill);
Failpoint round_flushed("fs.round_flushed", Failpoint::Kind::kKill);
// Leaves out the sync of chunk data before names are flushed: the bug that the whole design guards against.
Failpoint round_data_sync("fs.round_data_sync", Failpoint::Kind::kSkippable);

// A file that stays open for writing is left out of background rounds until this many of its chunks are unpublished.
constexpr size_t kPinsMax = 8192;

// What a round stores on its own thread, however many files it is of.
constexpr uint64_t kStoredHereBytesMax = 32 * kKiB;

// Memory that names may take before they are flushed: past it names wait, past a quarter of it a round is asked for. On
// a disk with little room it is less: what is not flushed yet has no room for sure.
constexpr size_t kUnflushedBytesMax = 64 * kMiB;
constexpr size_t kUnflushedBytesMin = 2 * kMiB;
constexpr size_t kUnflushedShareOfFree = 16;

// A round of so little is run by the thread that asks for it: it takes some milliseconds.
constexpr uint64_t kBytesRunHereMax = 8 * kMiB;

size_t UnflushedBytesMax(const store::LocalChunkStore& chunks) {
  return std::clamp<uint64_t>(chunks.DiskFreeBytes() / kUnflushedShareOfFree, kUnflushedBytesMin, kUnflushedBytesMax);
}

bool IsOfDisk(ErrorCode code) {
  return code == ErrorCode::kIo || code == ErrorCode::kFailed || code == ErrorCode::kCorrupt ||
         code == ErrorCode::kExhausted || code == ErrorCode::kPermission;  // it went read-only
}

}  // namespace

SyncRounds::Operation::Operation(SyncRounds& rounds) : rounds_(rounds) {
  if (rounds_.host_ != nullptr) return;
  MutexLock turn(rounds_.turnstile_);
  rounds_.gate_.lock_shared();
}

SyncRounds::Operation::~Operation() {
  if (rounds_.host_ == nullptr) rounds_.gate_.unlock_shared();
}

SyncRounds::SyncRounds(const FileSystem::Parts& parts, ClusterHost* host, Streams& streams, InodeTable& table,
                       TaskQueue& waiters, const Options& options)
    : kv_(parts.kv),
      local_kv_(parts.local_kv),
      host_(host),
      chunks_(parts.chunks),
      local_chunks_(parts.local_chunks),
      names_(parts.names),
      streams_(streams),
      table_(table),
      waiters_queue_(waiters),
      interval_ms_(options.interval_ms) {
  thread_ = std::thread([this] { Run(); });
}

SyncRounds::~SyncRounds() {
  if (thread_.joinable()) static_cast<void>(Stop());
}

std::optional<Status> SyncRounds::TryAdmit(NameChange change) {
  if (!kicked_ && !running_) {
    kicked_ = true;
    wake_.NotifyOne();
  }
  const bool removes = change == NameChange::kRemoves;
  const size_t unflushed_bytes = local_kv_->UnflushedBytes();
  if (unflushed_bytes < UnflushedBytesMax(local_chunks_) * (removes ? 2 : 1)) return Status();
  if (failure_) {
    if (removes && unflushed_bytes < 2 * kUnflushedBytesMax) return Status();
    return failure_->WithContext("too many changes wait for the disk");
  }
  if (stopping_) return MakeError(ErrorCode::kUnavailable, "the filesystem is stopping");
  return std::nullopt;
}

void SyncRounds::WhenAdmitted(NameChange change, Done<void> go) {
  if (local_kv_ == nullptr) return go({});
  if (local_kv_->UnflushedBytes() < UnflushedBytesMax(local_chunks_) / 4) return go({});
  std::optional<Status> admitted;
  {
    MutexLock lock(mutex_);
    admitted = TryAdmit(change);
    if (!admitted) postponed_.push_back({change, std::move(go)});
  }
  if (admitted) go(*admitted);
}

// After a round. Those that find the bound passed again wait for the next.
void SyncRounds::LetInPostponed() {
  std::vector<Postponed> postponed;
  {
    MutexLock lock(mutex_);
    postponed.swap(postponed_);
  }
  for (Postponed& one : postponed) {
    waiters_queue_.Post([this, change = one.change, go = std::move(one.go)] { WhenAdmitted(change, go); });
  }
}

void SyncRounds::AddChanged(const InodePtr& inode) {
  inode->content->changed = true;
  table_.Hold(inode->id);
  MutexLock lock(mutex_);
  changed_.push_back(inode);
}

void SyncRounds::AddOrphan(const InodePtr& inode) {
  MutexLock lock(mutex_);
  orphans_.push_back(inode->id);
}

bool SyncRounds::NothingPending() const {
  MutexLock lock(mutex_);
  return changed_.empty() && orphans_.empty() && !running_ && !open_ && waiters_.empty() && !has_loss_ &&
         !HasUnflushedNames();
}

void SyncRounds::Request(Done<void> done, Scope scope) {
  auto answer = [done = std::move(done)](const Status& status) {
    done(status);
    return true;
  };
  Request(Answer(std::move(answer)), scope);
}

void SyncRounds::Request(Answer answer, Scope scope) {
  if (scope == Scope::kAll) {
    requests_total_++;
    if (NothingPending()) {
      answer({});
      return;
    }
  }
  bool is_published = false;
  {
    MutexLock lock(mutex_);
    is_published = scope == Scope::kClosed && changed_.empty() && !running_ && !open_;
    if (!is_published && !stopping_) {
      waiters_.push_back({scope, std::move(answer)});
      wake_.NotifyOne();
      return;
    }
  }
  answer(is_published ? Status() : Status(MakeError(ErrorCode::kUnavailable, "the filesystem is stopping")));
}

// Not after a failure: the rounds' thread knows when to try again.
bool SyncRounds::MayRunHere() {
  if (host_ != nullptr || has_runner_ || stopping_ || !waiters_.empty() || !last_error_.empty()) return false;
  return local_chunks_.ReservedBytes() + local_kv_->UnflushedBytes() <= kBytesRunHereMax;
}

void SyncRounds::RequestHere(Answer answer) {
  bool runs_here = false;
  if (!NothingPending()) {
    MutexLock lock(mutex_);
    runs_here = MayRunHere();
    if (runs_here) BeginRound();
  }
  if (!runs_here) return Request(std::move(answer), Scope::kAll);
  requests_total_++;
  std::vector<Waiter> waiters;
  waiters.push_back({Scope::kAll, std::move(answer)});
  RunRound(std::move(waiters));
}

Status SyncRounds::RequestAndWait(Scope scope) {
  std::promise<Status> promise;
  Request([&](Status status) { promise.set_value(std::move(status)); }, scope);
  return promise.get_future().get();
}

std::string SyncRounds::last_error() const {
  MutexLock lock(mutex_);
  return last_error_;
}

bool SyncRounds::failing() const {
  MutexLock lock(mutex_);
  return failure_.has_value();
}

std::optional<Error> SyncRounds::DiskFailure() const {
  if (host_ != nullptr || !disk_failed_) return std::nullopt;
  MutexLock lock(mutex_);
  if (!failure_) return std::nullopt;
  return failure_->WithContext("nothing becomes durable any more");
}

Status SyncRounds::Stop() {
  Status status = RequestAndWait();
  if (auto left = LeftBehind(); status.ok() && !left.empty()) status = left.begin()->second;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.NotifyOne();
  }
  thread_.join();
  // All is durable. Small chunks go to their segment, or the next start would have to see to it.
  if (status.ok() && host_ == nullptr && rounds_total_ > 0) static_cast<void>(chunks_.Sync().ok());
  return status;
}

void SyncRounds::SetInterval(unsigned interval_ms) {
  interval_ms_ = interval_ms;
  MutexLock lock(mutex_);
  wake_.NotifyAll();  // who waits goes by the one before
}

void SyncRounds::Run() {
  pthread_setname_np(pthread_self(), "cairn-rounds");
  for (;;) {
    std::vector<Waiter> waiters;
    {
      MutexLock lock(mutex_);
      if (waiters_.empty() && !kicked_ && !stopping_) {
        wake_.WaitFor(mutex_, std::chrono::milliseconds(interval_ms_.load()));
      }
      while (has_runner_) runner_left_.Wait(mutex_);
      if (stopping_ && waiters_.empty()) break;
      waiters.swap(waiters_);
      BeginRound();
    }
    RunRound(std::move(waiters));
    // Do not spin on a disk that is full: whoever makes room asks again, and so does the interval.
    MutexLock lock(mutex_);
    if (!last_error_.empty() && waiters_.empty() && !stopping_) {
      wake_.WaitFor(mutex_, std::chrono::milliseconds(interval_ms_.load()));
    }
  }
  LetInPostponed();
}

void SyncRounds::BeginRound() {
  kicked_ = false;
  running_ = has_runner_ = true;
}

void SyncRounds::RunRound(std::vector<Waiter> waiters) {
  const auto is_for_all = [](const Waiter& waiter) { return waiter.scope == Scope::kAll; };
  const auto is_for_open = [](const Waiter& waiter) { return waiter.scope != Scope::kClosed; };
  is_awaited_ = std::any_of(waiters.begin(), waiters.end(), is_for_all);
  const Status flushed = RunOnce(std::any_of(waiters.begin(), waiters.end(), is_for_open));
  Status status = flushed;
  if (status.ok() && loss_) status = loss_->WithContext("bytes of a file are lost");
  if (status.ok() && shortage_) status = *shortage_;
  has_loss_ = loss_.has_value();
  {
    MutexLock lock(mutex_);
    running_ = false;
    NoteOutcome(status);
    failure_.reset();
    if (!flushed.ok()) failure_ = flushed.error();
    disk_failed_ = failure_ && IsOfDisk(failure_->code);
  }
  LetInPostponed();
  bool is_told = false;
  for (const Waiter& waiter : waiters) {
    const bool is_taken = waiter.answer(is_for_all(waiter) ? status : flushed);
    is_told = is_told || (is_taken && is_for_all(waiter));
  }
  if (flushed.ok() && is_told) {
    loss_.reset();
    has_loss_ = false;
  }
  MutexLock lock(mutex_);
  has_runner_ = false;
  runner_left_.NotifyOne();
}

void SyncRounds::NoteOutcome(const Status& status) {
  const std::string error = status.ok() ? "" : status.error().message;
  if (error == last_error_) return;
  if (error.empty()) {
    spdlog::info("sync rounds go well again");
  } else {
    spdlog::error("a sync round failed: {}", error);
  }
  last_error_ = error;
}

Status SyncRounds::RunOnce(bool everything) {
  shortage_.reset();
  if (host_ != nullptr) CAIRNFS_RETURN_IF_ERROR(Settle());
  if (open_) CAIRNFS_RETURN_IF_ERROR(Finish());  // one that failed comes first: order
  RemoveOrphans();
  Open(everything);
  return Finish();
}

void SyncRounds::RemoveOrphans() {
  std::vector<InodeId> orphans;
  {
    MutexLock lock(mutex_);
    orphans.swap(orphans_);
  }
  if (orphans.empty()) return;
  if (auto status = names_.RemoveOrphans(orphans); !status.ok()) {
    spdlog::warn("{} deleted files could not be removed and are left to the next start: {}", orphans.size(),
                 status.error().message);
  }
}

void SyncRounds::Open(bool everything) {
  MutexLock turn(turnstile_);
  std::unique_lock gate(gate_);
  std::vector<InodePtr> changed;
  {
    MutexLock lock(mutex_);
    if (changed_.empty() && !HasUnflushedNames()) return;
    changed.swap(changed_);
  }
  if (local_kv_ != nullptr) local_kv_->BeginFrozen();
  open_ = true;
  std::vector<InodePtr> left_out, gone;
  for (const InodePtr& inode : changed) {
    MutexLock lock(inode->mutex);
    // Given up meanwhile, because its session was lost; perhaps changed again since, and then twice in the list.
    if (!inode->content || !inode->content->changed || inode->content->owed) {
      gone.push_back(inode);
      continue;
    }
    Content& content = *inode->content;
    if (table_.IsGone(inode)) {
      // It went before this freeze: nothing of it is owed to anyone.
      streams_.Discard(inode);
      content.pins.clear();
      content.changed = false;
      gone.push_back(inode);
    } else if (everything || content.must_publish || inode->write_open_count == 0 || content.pins.size() > kPinsMax) {
      content.owed = true;
      content.owed_size = content.size;
      content.must_publish = false;
      owed_.push_back(inode);
    } else {
      left_out.push_back(inode);
    }
  }
  {
    MutexLock lock(mutex_);
    changed_.insert(changed_.end(), left_out.begin(), left_out.end());
  }
  gate.unlock();
  turn.Unlock();
  for (const InodePtr& inode : gone) table_.Unhold(inode);
  round_opened.Pass();
}

// A file for which there was no space, and which was deleted since, holds nobody up any more.
bool SyncRounds::DiscardIfGone(const InodePtr& inode) {
  {
    MutexLock lock(inode->mutex);
    if (!table_.IsGone(inode)) return false;
    streams_.Discard(inode);
    inode->content->pins.clear();
    inode->content->changed = inode->content->owed = false;
    inode->changed_state.NotifyAll();
  }
  table_.Unhold(inode);
  return true;
}

Status SyncRounds::WaitDrained(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  Content& content = *inode->content;
  for (;;) {
    if (content.flying.empty() || content.flying.begin()->first > content.drain_target) return {};
    auto landed = content.landed.find(content.flying.begin()->first);
    if (landed != content.landed.end() && landed->second.failure) {
      return landed->second.failure->WithContext("bytes of inode " + std::to_string(inode->id.value));
    }
    inode->changed_state.Wait(inode->mutex);
  }
}

// The size that a record may have now: bytes beyond the last record's size count only up to the first one that no
// extent covers and that was written, so that a crash never shows a file longer than its durable bytes. Where older
// bytes of the range are in the extents, those are what the sync point covers. Up to the size at the freeze, what is
// not stored was written after it: there the file was as the extents have it, or a hole.
static uint64_t DurableSize(const Content& content) {
  std::optional<uint64_t> limit;
  uint64_t floor = content.published_size;
  auto consider = [&](uint64_t begin, uint64_t end) {
    begin = std::max(begin, floor);
    if (limit) end = std::min(end, *limit);
    if (begin >= end) return;
    uint64_t position = begin;
    content.extents.ForEach(begin, end - begin, [&](const Extent& extent) {
      if (extent.offset <= position) position = extent.end();
    });
    if (position < end) limit = position;
  };
  for (const auto& range : content.lost) consider(range.begin, range.end);
  floor = std::max(floor, content.owed_size);
  content.overlay.ForEachUnstored(consider);
  for (const auto& [id, chunk] : content.flying) consider(chunk->offset, chunk->offset + chunk->size);
  return limit ? std::min(content.size, *limit) : content.size;
}

Result<meta::FileRecord> SyncRounds::MakeRecord(const InodePtr& inode) {
  Content& content = *inode->content;
  if (!content.loss_told && inode->error) loss_ = inode->error;
  content.loss_told = true;
  const uint64_t durable_size = DurableSize(content);  // before holes are filled
  streams_.MergeSmallExtents(inode);
  streams_.MergeTail(inode, durable_size);
  ChunkSink sink{chunks_, content.owner, content.pins};
  auto recipe = content.extents.Store(sink);
  if (!recipe.ok()) {
    // The file stays as it was recorded last, and comes again: no other waits for it.
    streams_.NoteRecipeError(inode, recipe.error());
    content.owed = false;
    content.must_publish = true;
    MutexLock list(mutex_);
    changed_.push_back(inode);
    inode->changed_state.NotifyAll();
    return recipe.error();
  }
  Streams::ForgetRecipeError(inode);
  meta::FileRecord record;
  record.size = durable_size;
  record.allocated_bytes = content.extents.allocated_bytes();
  record.mtime = content.mtime;
  record.ctime = content.ctime;
  record.recipe = recipe->Encode();
  return record;
}

Status SyncRounds::Publish(const InodePtr& inode, std::vector<kv::KvWrite>& writes,
                           std::vector<store::ChunkPin>& pins) {
  MutexLock lock(inode->mutex);
  CAIRNFS_ASSIGN_OR_RETURN(const meta::FileRecord record, MakeRecord(inode));
  Content& content = *inode->content;
  writes.push_back({meta::FileKey(inode->id), record.Encode(), 0});
  content.published_size = record.size;
  std::move(content.pins.begin(), content.pins.end(), std::back_inserter(pins));
  content.pins.clear();
  content.owed = false;
  content.flushed_with = rounds_total_ + 1;
  content.changed = content.overlay.HasUnstored() || !content.flying.empty();
  if (content.changed) {
    MutexLock list(mutex_);
    changed_.push_back(inode);
  } else {
    content.unrecorded = true;
    published_.push_back(inode);
  }
  inode->changed_state.NotifyAll();
  return {};
}

// The record tells all there is to know again: what is kept in memory goes once nobody has the file open.
void SyncRounds::LetGo(const InodePtr& inode) {
  {
    MutexLock lock(inode->mutex);
    if (inode->content) inode->content->unrecorded = false;
    if (inode->content && inode->open_count == 0 && !inode->content->changed && inode->content->idle()) {
      streams_.RemoveRange(inode, 0, kFileSizeMax);
      inode->content.reset();
      table_.contents_dropped++;
    }
  }
  table_.Unhold(inode);
}

void SyncRounds::DrainOwed() {
  uint64_t here_bytes_max = kStoredHereBytesMax;
  for (const InodePtr& inode : owed_) streams_.Drain(inode, here_bytes_max);
  // Bytes and recipes that have no space must not hold up the names: among them are the deletions that make space.
  // Their files are published as far as they are stored, and are owed to the next round.
  std::erase_if(owed_, [this](const InodePtr& inode) {
    Status drained = WaitDrained(inode);
    if (drained.ok()) return false;
    if (DiscardIfGone(inode)) return true;
    shortage_ = drained.error();
    MutexLock lock(inode->mutex);
    inode->content->owed_size = 0;
    inode->content->must_publish = true;  // by the next round, whoever has it open
    if (host_ != nullptr) NoteFailure(inode, drained.error());
    return false;
  });
  round_drained.Pass();
}

Status SyncRounds::Finish() {
  if (!open_) return {};
  if (host_ != nullptr) return FinishShared();
  DrainOwed();
  std::vector<kv::KvWrite> writes;
  std::vector<store::ChunkPin> pins;  // given up once the records that name the chunks can be read
  for (const InodePtr& inode : owed_) {
    Status published = Publish(inode, writes, pins);
    if (published.ok()) continue;
    shortage_ = published.error().WithContext("recipe of inode " + std::to_string(inode->id.value));
  }
  owed_.clear();
  local_kv_->CommitLate(writes);
  pins.clear();
  for (const InodePtr& inode : published_) LetGo(inode);
  published_.clear();
  round_published.Pass();
  // Somebody waits for it: what is little goes with the names. Segments are synced by rounds that nobody waits for.
  if (!round_data_sync.PassOrSkip()) {
    CAIRNFS_RETURN_IF_ERROR(is_awaited_ ? local_chunks_.SyncWithEngine() : chunks_.Sync());
  }
  round_data_synced.Pass();
  CAIRNFS_RETURN_IF_ERROR(local_kv_->FlushFrozen());
  round_flushed.Pass();
  open_ = false;
  rounds_total_++;
  return {};
}

}  // namespace cairnfs::fs
