// Collector: the collection of a host alone. Finds which chunks are reachable, and has the store sweep the rest. One at
// a time, in a thread of its own, either asked for or when enough was deleted.
//
// Why nothing reachable is lost: a reference that exists when the collection begins stands in a file's record, where
// the mark finds it, or is pinned; one that is made later goes through Put or Pin, which the store records. After the
// mark and before the sweep a sync round runs, so that no older record, which names chunks that the mark did not see,
// can come back after a crash.
#pragma once

#include <algorithm>
#include <optional>
#include <stop_token>
#include <thread>

#include "base/clock.h"
#include "fs/collection.h"
#include "fs/filesystem.h"
#include "fs/sync_rounds.h"

namespace cairnfs::fs {

// The digests that records name: eight bytes of each, which is enough for a test that may err towards keeping.
class LiveSet {
 public:
  void Add(const Digest& digest);
  void Seal();                                // call once after the last Add
  bool Contains(const Digest& digest) const;  // REQUIRES: sealed
  size_t size() const { return prefixes_.size(); }

 private:
  void Compact();
  std::vector<uint64_t> prefixes_;
  size_t compact_at_ = 1 << 20;
  bool is_sealed_ = false;
};

class Collector final : public Collection {
 public:
  // `uncollected`: bytes freed before that no collection has looked at, of an earlier process; counted as freed now.
  Collector(kv::KvStore& kv, store::LocalChunkStore& chunks, SyncRounds& rounds, const FsOptions& options,
            uint64_t uncollected);
  ~Collector() override;

  // What an earlier process left to collect, and forgets it: bytes that its NoteUncollected wrote, or as many as make a
  // collection begin when it was killed and left none.
  static Result<uint64_t> TakeUncollected(kv::KvStore& kv, const FsOptions& options);
  cairnfs::Status NoteUncollected() override;

  void NoteFreed(uint64_t bytes) override;
  void NoteNoRoom() override;
  void Request(Done<CollectionStatus> done) override;
  void RequestCount(Done<LiveCount> done) override;
  std::optional<LiveCount> last_count() const override;
  CollectionStatus Status() const override;
  uint64_t CountFree(uint64_t stored, uint64_t named) const override { return stored - std::min(stored, named); }
  bool running() const override { return running_.load(); }
  std::string last_error() const override;
  cairnfs::Status Hold() override;
  cairnfs::Status Resume() override;
  void SetRate(uint64_t bytes_per_second_max) override { bytes_per_second_max_ = bytes_per_second_max; }
  void Stop() override;

  // Adds every digest that the record of a file names, pages too.
  static cairnfs::Status MarkFile(const meta::FileRecord& record, store::ChunkStore& chunks,
                                  const std::function<void(const Digest&)>& add);
  // How long after a collection that took so long none begins for lack of room alone.
  static std::chrono::nanoseconds PauseForRoomAfter(std::chrono::nanoseconds taken);

 private:
  void Run();
  void AnswerCounts();
  Result<LiveCount> CountOnce();
  Error WhyStopped() const;
  cairnfs::Status WriteUncollected();
  bool IsDue() const REQUIRES_LOCK(mutex_);
  void NoteFailure(const Error& error, uint64_t freed_before) REQUIRES_LOCK(mutex_);
  cairnfs::Status CollectOnce(const Context& context);
  cairnfs::Status Mark(const Context& context, LiveSet& live);

  kv::KvStore& kv_;
  store::LocalChunkStore& chunks_;
  SyncRounds& rounds_;
  const FsOptions options_;

  mutable Mutex mutex_;
  CondVar wake_;
  std::vector<Done<CollectionStatus>> requests_ GUARDED_BY(mutex_);
  std::vector<Done<LiveCount>> count_requests_ GUARDED_BY(mutex_);
  std::optional<LiveCount> last_count_ GUARDED_BY(mutex_);
  uint64_t freed_bytes_ GUARDED_BY(mutex_) = 0;
  bool is_room_short_ GUARDED_BY(mutex_) = false;  // since the last collection began
  // A full disk stays full, and little is freed all the time: that does not keep the collector always at work.
  Clock::time_point not_for_room_before_ GUARDED_BY(mutex_);
  Clock::time_point last_freed_ GUARDED_BY(mutex_);
  Clock::time_point due_since_ GUARDED_BY(mutex_);   // when enough was freed
  Clock::time_point not_before_ GUARDED_BY(mutex_);  // by itself, after one that failed
  Clock::time_point failed_at_ GUARDED_BY(mutex_);
  // The most that the disk had free when one failed for lack of room, since one succeeded: with more, the next need
  // not wait for not_before_.
  std::optional<uint64_t> free_bytes_at_failure_ GUARDED_BY(mutex_);
  uint64_t freed_bytes_at_failure_ GUARDED_BY(mutex_) = 0;
  std::string last_error_ GUARDED_BY(mutex_);
  std::string logged_error_ GUARDED_BY(mutex_);
  Clock::time_point logged_at_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  bool is_held_ GUARDED_BY(mutex_);
  bool is_working_ GUARDED_BY(mutex_) = false;
  CondVar idle_;                              // is_working_ became false
  std::stop_source stop_ GUARDED_BY(mutex_);  // of the collection that runs
  std::string phase_ GUARDED_BY(mutex_) = "idle";
  uint64_t runs_total_ GUARDED_BY(mutex_) = 0, vain_looks_total_ GUARDED_BY(mutex_) = 0;

  std::atomic<bool> running_{false};
  std::atomic<uint64_t> inodes_marked_{0};
  std::atomic<uint64_t> bytes_per_second_max_;
  store::SweepProgress progress_;
  std::stop_source count_stop_;  // of counts, which Hold does not end
  std::thread thread_;
};

}  // namespace cairnfs::fs
