#include "fs/collector.h"

#include <pthread.h>

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"

namespace cairnfs::fs {
namespace {

// A collection that failed is not tried again by itself sooner; who asks for one, or needs room, is not held up.
constexpr auto kRetryAfter = std::chrono::minutes(5);
// One that failed for lack of room may be, once the disk has so much more of it.
constexpr auto kRetryWithRoomAfter = std::chrono::seconds(3);
constexpr uint64_t kMoreRoomBytes = 4 * kMiB;
constexpr auto kSameErrorLoggedAfter = std::chrono::minutes(1);
// Files that are removed all the time put a collection off, but not for ever.
constexpr int kDelaysMax = 10;
// From one collection to the next that begins for lack of room alone: so many times what it took. No longer than
// whoever has made room and tries again can be kept waiting, however much the one before had to move.
constexpr std::chrono::nanoseconds kPauseForRoomMin = std::chrono::seconds(2);
constexpr std::chrono::nanoseconds kPauseForRoomMax = std::chrono::seconds(30);
constexpr int kPausePerCollection = 4;
constexpr std::chrono::nanoseconds kRestMax = std::chrono::hours(1);

}  // namespace

Collector::Collector(std::unique_ptr<CollectionWork> work, store::LocalChunkStore& chunks, const FsOptions& options,
                     uint64_t uncollected)
    : work_(std::move(work)),
      chunks_(chunks),
      options_(options),
      freed_bytes_(uncollected),
      last_freed_(Clock::Now()),
      due_since_(last_freed_),
      is_held_(options.read_only),
      bytes_per_second_max_(options.collect_bytes_per_second_max) {}

Collector::~Collector() { Stop(); }

void Collector::Start() {
  thread_ = std::thread([this] { Run(); });
}

cairnfs::Status Collector::Hold() {
  {
    MutexLock lock(mutex_);
    if (is_held_) return {};
    is_held_ = true;
    stop_.request_stop();
    while (is_working_) idle_.Wait(mutex_);
  }
  return WriteUncollected();
}

cairnfs::Status Collector::Resume() {
  {
    MutexLock lock(mutex_);
    if (!is_held_) return {};
  }
  CAIRNFS_ASSIGN_OR_RETURN(const uint64_t uncollected, work_->TakeUncollected());
  MutexLock lock(mutex_);
  is_held_ = false;
  if (!stopping_) stop_ = std::stop_source();
  freed_bytes_ = std::max(freed_bytes_, uncollected);
  last_freed_ = due_since_ = Clock::Now();
  not_before_ = {};
  return {};
}

void Collector::Stop() {
  {
    MutexLock lock(mutex_);
    stop_.request_stop();
    count_stop_.request_stop();
    stopping_ = true;
    wake_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Collector::NoteFreed(uint64_t bytes) {
  if (bytes == 0) return;
  MutexLock lock(mutex_);
  last_freed_ = Clock::Now();
  if (freed_bytes_ < options_.collect_after_bytes && freed_bytes_ + bytes >= options_.collect_after_bytes) {
    due_since_ = last_freed_;
  }
  freed_bytes_ += bytes;
}

void Collector::NoteNoRoom() {
  MutexLock lock(mutex_);
  is_room_short_ = true;
}

std::chrono::nanoseconds Collector::PauseForRoomAfter(std::chrono::nanoseconds taken) {
  return std::clamp(kPausePerCollection * taken, kPauseForRoomMin, kPauseForRoomMax);
}

// When enough was freed, nothing more came for a while, or that while never comes; or when anything was freed and room
// is short.
bool Collector::IsDue() const {
  const auto now = Clock::Now();
  const auto delay = std::chrono::milliseconds(options_.collect_delay_ms);
  if (!options_.collect_by_itself || is_held_ || freed_bytes_ == 0) return false;
  if (!is_room_short_ || now < not_for_room_before_) {
    if (freed_bytes_ < options_.collect_after_bytes) return false;
    if (now - last_freed_ < delay && now - due_since_ < kDelaysMax * delay) return false;
    if (now < rests_until_) return false;
  }
  if (now >= not_before_) return true;
  if (!free_bytes_at_failure_) return false;  // it did not fail for lack of room
  // Of what was deleted since, whole segments may be free, which need no room to go.
  if (freed_bytes_ > freed_bytes_at_failure_ && now >= not_for_room_before_) return true;
  return now - failed_at_ >= kRetryWithRoomAfter && chunks_.DiskFreeBytes() >= *free_bytes_at_failure_ + kMoreRoomBytes;
}

cairnfs::Status Collector::NoteUncollected() {
  {
    MutexLock lock(mutex_);
    if (is_held_) return {};  // it was left when that began
  }
  return WriteUncollected();
}

cairnfs::Status Collector::WriteUncollected() {
  if (!options_.collect_by_itself) return {};  // what was left is there still
  uint64_t bytes = 0;
  {
    MutexLock lock(mutex_);
    bytes = freed_bytes_;
  }
  return work_->NoteUncollected(bytes);
}

void Collector::Request(Done<CollectionStatus> done) {
  MutexLock lock(mutex_);
  if (!stopping_ && !is_held_) {
    requests_.push_back(std::move(done));
    wake_.NotifyAll();
    return;
  }
  lock.Unlock();
  done(WhyStopped());
}

CollectionStatus Collector::Status() const {
  CollectionStatus status;
  {
    MutexLock lock(mutex_);
    status.runs_total = runs_total_;
    status.vain_looks_total = vain_looks_total_;
  }
  status.running = running_.load();
  status.phase = progress_.Phase();
  status.inodes_marked = progress_.inodes_marked.load();
  const store::SweepProgress& sweep = progress_.sweep;
  status.chunks_seen = sweep.chunks_seen.load();
  status.chunks_total = sweep.chunks_total.load();
  status.chunks_freed = sweep.chunks_freed.load();
  status.bytes_freed = sweep.bytes_freed.load();
  status.segments_compacted = sweep.segments_compacted.load();
  status.segments_freed = sweep.segments_freed.load();
  status.bytes_moved = sweep.bytes_moved.load();
  return status;
}

void Collector::RequestCount(Done<LiveCount> done) {
  MutexLock lock(mutex_);
  if (!stopping_) {
    count_requests_.push_back(std::move(done));
    wake_.NotifyAll();
    return;
  }
  lock.Unlock();
  done(MakeError(ErrorCode::kUnavailable, "the filesystem is stopping"));
}

uint64_t Collector::runs_total() const {
  MutexLock lock(mutex_);
  return runs_total_;
}

std::optional<LiveCount> Collector::last_count() const {
  MutexLock lock(mutex_);
  return last_count_;
}

// One count serves all who have asked for one by now.
void Collector::AnswerCounts() {
  std::vector<Done<LiveCount>> requests;
  {
    MutexLock lock(mutex_);
    requests.swap(count_requests_);
  }
  if (requests.empty()) return;
  const Result<store::LiveTotals> totals = work_->Count(Context(count_stop_.get_token()));
  const Result<LiveCount> counted = totals.ok() ? Result<LiveCount>({*totals, Clock::Now()}) : totals.error();
  if (counted.ok()) {
    MutexLock lock(mutex_);
    last_count_ = *counted;
  }
  for (auto& done : requests) done(counted);
}

std::string Collector::last_error() const {
  MutexLock lock(mutex_);
  return last_error_;
}

void Collector::Run() {
  pthread_setname_np(pthread_self(), "cairn-collect");
  for (;;) {
    AnswerCounts();
    const bool is_called = work_->IsCalled(Context(count_stop_.get_token()));
    std::vector<Done<CollectionStatus>> requests;
    uint64_t freed_before = 0;
    bool is_due = false;
    Context context;
    {
      MutexLock lock(mutex_);
      if (!count_requests_.empty()) continue;
      if (stopping_ && requests_.empty()) return;
      is_due = !requests_.empty() || IsDue();
      if (!stopping_ && !is_due && !is_called) {
        vain_looks_total_++;
        wake_.WaitFor(mutex_, std::chrono::milliseconds(500));
        continue;
      }
      requests.swap(requests_);
      freed_before = std::exchange(freed_bytes_, 0);
      is_room_short_ = false;
      // What others have deleted is freed here also while this host changes nothing.
      is_working_ = is_due;
      context = Context(is_due ? stop_.get_token() : count_stop_.get_token());
    }
    const auto began = Clock::Now();
    const Result<bool> collected = context.Expired() ? Result<bool>(WhyStopped()) : CollectOnce(context, is_due);
    cairnfs::Status status = collected.ok() ? cairnfs::Status() : collected.error();
    if (!status.ok() && status.error().code == ErrorCode::kInterrupted) status = WhyStopped();
    const store::StoreStats left = status.ok() ? chunks_.Stats() : store::StoreStats();
    {
      MutexLock lock(mutex_);
      progress_.SetPhase(status.ok() ? "done" : "failed: " + status.error().message);
      const auto now = Clock::Now();
      not_for_room_before_ = now + PauseForRoomAfter(now - began);
      if (requests.empty()) {
        rests_until_ = now + std::min<std::chrono::nanoseconds>(kPausePerCollection * (now - began), kRestMax);
      }
      if (status.ok()) {
        runs_total_++;
        last_error_.clear();
        not_before_ = {};
        free_bytes_at_failure_.reset();
        if (*collected) last_count_ = {{left.chunk_count, left.unique_bytes, 0, 0}, now};
        if (!*collected) freed_bytes_ += freed_before;
      } else {
        NoteFailure(status.error(), freed_before);
      }
      is_working_ = false;
      idle_.NotifyAll();
    }
    for (auto& done : requests) done(status.ok() ? Result<CollectionStatus>(Status()) : status.error());
  }
}

Error Collector::WhyStopped() const {
  MutexLock lock(mutex_);
  if (!stopping_ && is_held_) return MakeError(ErrorCode::kPermission, "the filesystem was made read_only");
  return MakeError(ErrorCode::kUnavailable, "the filesystem is stopping");
}

void Collector::NoteFailure(const Error& error, uint64_t freed_before) {
  freed_bytes_ += freed_before;
  freed_bytes_at_failure_ = freed_bytes_;
  failed_at_ = due_since_ = Clock::Now();
  not_before_ = failed_at_ + kRetryAfter;
  if (stop_.get_token().stop_requested()) return;
  if (error.code == ErrorCode::kNoSpace) {
    free_bytes_at_failure_ = std::max(free_bytes_at_failure_.value_or(0), chunks_.DiskFreeBytes());
  } else {
    free_bytes_at_failure_.reset();
  }
  last_error_ = error.message;
  // Every writer that finds no room asks for one.
  if (error.message == logged_error_ && failed_at_ - logged_at_ < kSameErrorLoggedAfter) return;
  logged_error_ = error.message;
  logged_at_ = failed_at_;
  spdlog::warn("collection failed: {}", error.message);
}

Result<bool> Collector::CollectOnce(const Context& context, bool is_due) {
  running_ = true;
  struct Clear {
    std::atomic<bool>& flag;
    ~Clear() { flag = false; }
  } clear{running_};
  progress_.Reset();
  if (!is_due) return work_->TakePart(context, bytes_per_second_max_, progress_);
  CAIRNFS_RETURN_IF_ERROR(work_->Collect(context, bytes_per_second_max_, progress_));
  return true;
}

}  // namespace cairnfs::fs
