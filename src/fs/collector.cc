#include "fs/collector.h"

#include <pthread.h>

#include <algorithm>
#include <cassert>

#include "base/clock.h"
#include "base/coding.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "fs/extent_map.h"

namespace cairnfs::fs {
namespace {

Failpoint collect_marked("fs.collect_marked", Failpoint::Kind::kKill);
Failpoint collect_synced("fs.collect_synced", Failpoint::Kind::kKill);
Failpoint collect_swept("fs.collect_swept", Failpoint::Kind::kKill);

constexpr size_t kRecordsPerRead = 1024;
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

}  // namespace

void LiveSet::Add(const Digest& digest) {
  prefixes_.push_back(DigestHash()(digest));
  if (prefixes_.size() >= compact_at_) Compact();
}

void LiveSet::Compact() {
  std::sort(prefixes_.begin(), prefixes_.end());
  prefixes_.erase(std::unique(prefixes_.begin(), prefixes_.end()), prefixes_.end());
  compact_at_ = std::max(compact_at_, prefixes_.size() * 2);
}

void LiveSet::Seal() {
  Compact();
  is_sealed_ = true;
}

bool LiveSet::Contains(const Digest& digest) const {
  assert(is_sealed_);
  return std::binary_search(prefixes_.begin(), prefixes_.end(), DigestHash()(digest));
}

Collector::Collector(kv::KvStore& kv, store::LocalChunkStore& chunks, SyncRounds& rounds, const FsOptions& options,
                     uint64_t uncollected)
    : kv_(kv),
      chunks_(chunks),
      rounds_(rounds),
      options_(options),
      freed_bytes_(uncollected),
      last_freed_(Clock::Now()),
      due_since_(last_freed_),
      is_held_(options.read_only),
      bytes_per_second_max_(options.collect_bytes_per_second_max) {
  thread_ = std::thread([this] { Run(); });
}

Collector::~Collector() { Stop(); }

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
  FsOptions options = options_;
  options.read_only = false;
  CAIRNFS_ASSIGN_OR_RETURN(const uint64_t uncollected, TakeUncollected(kv_, options));
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
  }
  if (now >= not_before_) return true;
  if (!free_bytes_at_failure_) return false;  // it did not fail for lack of room
  // Of what was deleted since, whole segments may be free, which need no room to go.
  if (freed_bytes_ > freed_bytes_at_failure_ && now >= not_for_room_before_) return true;
  return now - failed_at_ >= kRetryWithRoomAfter && chunks_.DiskFreeBytes() >= *free_bytes_at_failure_ + kMoreRoomBytes;
}

Result<uint64_t> Collector::TakeUncollected(kv::KvStore& kv, const FsOptions& options) {
  if (!options.collect_by_itself || options.read_only) return 0;
  CAIRNFS_ASSIGN_OR_RETURN(auto left, kv.Get({}, meta::FreedBytesKey()));
  if (left) {
    CAIRNFS_RETURN_IF_ERROR(kv.Commit({}, kv::Transaction().Delete(meta::FreedBytesKey())));
    Decoder decoder(left->value);
    const uint64_t bytes = decoder.U64();
    return decoder.Finished() ? bytes : options.collect_after_bytes;
  }
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvRange files, kv.Range({}, "D", kv::PrefixEnd("D"), 1));
  return files.entries.empty() ? 0 : options.collect_after_bytes;
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
  CAIRNFS_RETURN_IF_ERROR(kv_.Commit({}, kv::Transaction().Put(meta::FreedBytesKey(), Encoder().U64(bytes).Take())));
  return {};
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
    status.phase = phase_;
    status.runs_total = runs_total_;
    status.vain_looks_total = vain_looks_total_;
  }
  status.running = running_.load();
  status.inodes_marked = inodes_marked_.load();
  status.chunks_seen = progress_.chunks_seen.load();
  status.chunks_total = progress_.chunks_total.load();
  status.chunks_freed = progress_.chunks_freed.load();
  status.bytes_freed = progress_.bytes_freed.load();
  status.segments_compacted = progress_.segments_compacted.load();
  status.segments_freed = progress_.segments_freed.load();
  status.bytes_moved = progress_.bytes_moved.load();
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
  const Result<LiveCount> counted = CountOnce();
  if (counted.ok()) {
    MutexLock lock(mutex_);
    last_count_ = *counted;
  }
  for (auto& done : requests) done(counted);
}

Result<LiveCount> Collector::CountOnce() {
  LiveSet live;
  static_cast<void>(chunks_.Sync().ok());  // as in CollectOnce
  chunks_.BeginCollection();
  if (cairnfs::Status marked = Mark(Context(count_stop_.get_token()), live); !marked.ok()) {
    chunks_.AbortCollection();
    return marked.error();
  }
  live.Seal();
  auto is_live = [&](const Digest& digest) { return live.Contains(digest); };
  CAIRNFS_ASSIGN_OR_RETURN(const store::LiveTotals totals,
                           chunks_.CountLive(Context(count_stop_.get_token()), is_live));
  return LiveCount{totals, Clock::Now()};
}

std::string Collector::last_error() const {
  MutexLock lock(mutex_);
  return last_error_;
}

void Collector::Run() {
  pthread_setname_np(pthread_self(), "cairn-collect");
  for (;;) {
    AnswerCounts();
    std::vector<Done<CollectionStatus>> requests;
    uint64_t freed_before = 0;
    Context context;
    {
      MutexLock lock(mutex_);
      if (!count_requests_.empty()) continue;
      if (stopping_ && requests_.empty()) return;
      if (!stopping_ && requests_.empty() && !IsDue()) {
        vain_looks_total_++;
        wake_.WaitFor(mutex_, std::chrono::milliseconds(500));
        continue;
      }
      requests.swap(requests_);
      freed_before = std::exchange(freed_bytes_, 0);
      is_room_short_ = false;
      is_working_ = true;
      context = Context(stop_.get_token());
    }
    const auto began = Clock::Now();
    cairnfs::Status status = context.Expired() ? cairnfs::Status(WhyStopped()) : CollectOnce(context);
    const store::StoreStats left = status.ok() ? chunks_.Stats() : store::StoreStats();
    {
      MutexLock lock(mutex_);
      phase_ = status.ok() ? "done" : "failed: " + status.error().message;
      const auto now = Clock::Now();
      not_for_room_before_ = now + PauseForRoomAfter(now - began);
      if (status.ok()) {
        runs_total_++;
        last_error_.clear();
        not_before_ = {};
        free_bytes_at_failure_.reset();
        last_count_ = {{left.chunk_count, left.unique_bytes, 0, 0}, now};
      } else {
        NoteFailure(status.error(), freed_before);
      }
      is_working_ = false;
      idle_.NotifyAll();
    }
    for (auto& done : requests) {
      if (status.ok()) {
        done(Status());
      } else {
        done(status.error());
      }
    }
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

cairnfs::Status Collector::CollectOnce(const Context& context) {
  running_ = true;
  struct Clear {
    std::atomic<bool>& flag;
    ~Clear() { flag = false; }
  } clear{running_};
  auto set_phase = [this](const char* phase) {
    MutexLock lock(mutex_);
    phase_ = phase;
  };
  for (auto* counter :
       {&inodes_marked_, &progress_.chunks_seen, &progress_.chunks_total, &progress_.chunks_freed,
        &progress_.bytes_freed, &progress_.segments_compacted, &progress_.segments_freed, &progress_.bytes_moved}) {
    counter->store(0);
  }
  // What was deleted just now counts: its records go before the next freeze.
  set_phase("sync");
  CAIRNFS_RETURN_IF_ERROR(rounds_.RequestAndWait(SyncRounds::Scope::kNames));
  // Small chunks that no round has indexed yet (SyncWithEngine) would be passed over.
  static_cast<void>(chunks_.Sync().ok());
  set_phase("mark");
  LiveSet live;
  chunks_.BeginCollection();
  cairnfs::Status status = Mark(context, live);
  live.Seal();
  collect_marked.Pass();
  if (status.ok()) status = rounds_.RequestAndWait(SyncRounds::Scope::kNames);
  if (status.ok() && context.Expired()) status = WhyStopped();
  collect_synced.Pass();
  if (!status.ok()) {
    chunks_.AbortCollection();
    return status;
  }
  set_phase("sweep");
  store::SweepOptions sweep;
  sweep.bytes_per_second_max = bytes_per_second_max_;
  status = chunks_.Sweep(
      context, [&](const Digest& digest) { return live.Contains(digest); }, sweep, progress_);
  collect_swept.Pass();
  return status;
}

cairnfs::Status Collector::Mark(const Context& context, LiveSet& live) {
  std::string begin = "D";
  const std::string end = kv::PrefixEnd("D");
  for (bool more = true; more;) {
    if (context.Expired()) return WhyStopped();
    CAIRNFS_ASSIGN_OR_RETURN(kv::KvRange range, kv_.Range(context, begin, end, kRecordsPerRead));
    for (const kv::KvEntry& entry : range.entries) {
      auto record = meta::FileRecord::Decode(entry.value);
      if (!record.ok()) return record.error().WithContext("record of a file");
      auto add = [&](const Digest& digest) { live.Add(digest); };
      cairnfs::Status marked = MarkFile(*record, chunks_, add);
      if (!marked.ok()) {
        // Replaced and collected pages mean that the record changed under the mark: read it again.
        CAIRNFS_ASSIGN_OR_RETURN(auto again, kv_.Get(context, entry.key));
        if (again && again->revision == entry.revision) {
          const InodeId inode = meta::InodeOfKey(entry.key).value_or(InodeId{0});
          const std::string what = "the recipe of inode " + std::to_string(inode.value);
          const ErrorCode code = marked.error().code;
          const bool is_of_file = code != ErrorCode::kExhausted && code != ErrorCode::kUnavailable;
          if (!is_of_file) return marked.error().WithContext(what);
          return marked.error().WithContext(what +
                                            " cannot be read, so nothing is known to be free: find the file with "
                                            "cairnfs check, restore or remove it");
        }
        if (again) {
          CAIRNFS_ASSIGN_OR_RETURN(meta::FileRecord newer, meta::FileRecord::Decode(again->value));
          CAIRNFS_RETURN_IF_ERROR(MarkFile(newer, chunks_, add));
        }
      }
      inodes_marked_++;
    }
    more = range.more && !range.entries.empty();
    if (more) begin = range.entries.back().key + '\0';
  }
  return {};
}

cairnfs::Status Collector::MarkFile(const meta::FileRecord& record, store::ChunkStore& chunks,
                                    const std::function<void(const Digest&)>& add) {
  CAIRNFS_ASSIGN_OR_RETURN(Recipe recipe, Recipe::Decode(record.recipe));
  for (const Extent& extent : recipe.extents) add(extent.digest);
  for (const PageRef& inner : recipe.inner) {
    add(inner.digest);
    CAIRNFS_ASSIGN_OR_RETURN(std::string text, store::GetText(chunks, inner.digest));
    CAIRNFS_ASSIGN_OR_RETURN(std::vector<PageRef> leaves, DecodePageRefs(text));
    for (const PageRef& leaf : leaves) {
      add(leaf.digest);
      CAIRNFS_ASSIGN_OR_RETURN(std::string page, store::GetText(chunks, leaf.digest));
      CAIRNFS_ASSIGN_OR_RETURN(std::vector<Extent> extents, DecodeExtents(page, leaf.index * kLeafBytes, kLeafBytes));
      for (const Extent& extent : extents) add(extent.digest);
    }
  }
  return {};
}

}  // namespace cairnfs::fs
