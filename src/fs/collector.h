// Collector: when a collection is due, and the thread in which it runs: one at a time, either asked for, or when enough
// was deleted, or because another host calls for it.
#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <thread>

#include "base/clock.h"
#include "fs/collection_work.h"
#include "fs/filesystem.h"

namespace cairnfs::fs {

// All functions: any thread.
class Collector {
 public:
  // `uncollected`: bytes freed before that no collection has looked at, of an earlier process; counted as freed now.
  Collector(std::unique_ptr<CollectionWork> work, store::LocalChunkStore& chunks, const FsOptions& options,
            uint64_t uncollected);
  ~Collector();
  // Once, when all that a round needs is there; before it nothing is collected.
  void Start();

  void NoteFreed(uint64_t bytes);
  // Bytes that were accepted found none: little that was freed is worth a collection too.
  void NoteNoRoom();
  // Joins the collection that is about to begin. kBusy: none is possible.
  void Request(Done<CollectionStatus> done);
  // What a collection that began now would keep and free. Changes nothing. Joins the count that is about to begin.
  // kBusy as for a collection.
  void RequestCount(Done<LiveCount> done);
  std::optional<LiveCount> last_count() const;  // of the last count or collection
  CollectionStatus Status() const;
  // Of so many chunks on this node, of which files name so many: those that a collection would free.
  uint64_t CountFree(uint64_t stored, uint64_t named) const { return work_->CountFree(stored, named); }
  bool running() const { return running_.load(); }
  // Of collections that went well, on this host and, among several, of others in which this one took part.
  uint64_t runs_total() const;
  std::string last_error() const;  // of the last collection; empty when it went well
  // Gives up a collection that runs, returns once it has ended, and lets none begin until Resume; what is to be
  // collected is left as NoteUncollected leaves it, and Resume takes it. Nothing to do where that is so already.
  cairnfs::Status Hold();
  cairnfs::Status Resume();
  void SetRate(uint64_t bytes_per_second_max) { bytes_per_second_max_ = bytes_per_second_max; }  // of the next one
  // Where the metadata went back to an older state nothing is collected until this is called. kInvalidArgument: a host
  // alone.
  cairnfs::Status Release() { return work_->Release(); }
  // A collection that runs is given up, and none begins any more.
  void Stop();
  // Writes for the next process what is left to collect; the last round makes it durable. After Stop.
  cairnfs::Status NoteUncollected();

  // How long after a collection that took so long none begins for lack of room alone.
  static std::chrono::nanoseconds PauseForRoomAfter(std::chrono::nanoseconds taken);

 private:
  void Run();
  void AnswerCounts();
  Error WhyStopped() const;
  cairnfs::Status WriteUncollected();
  bool IsDue() const REQUIRES_LOCK(mutex_);
  void NoteFailure(const Error& error, uint64_t freed_before) REQUIRES_LOCK(mutex_);
  // Unless it is due, another host calls for it. Whether what was freed so far is collected.
  Result<bool> CollectOnce(const Context& context, bool is_due);

  const std::unique_ptr<CollectionWork> work_;
  store::LocalChunkStore& chunks_;
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
  Clock::time_point rests_until_ GUARDED_BY(mutex_);  // after one, unless room is short: it reads all records
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
  uint64_t runs_total_ GUARDED_BY(mutex_) = 0, vain_looks_total_ GUARDED_BY(mutex_) = 0;

  std::atomic<bool> running_{false};
  std::atomic<uint64_t> bytes_per_second_max_;
  CollectionProgress progress_;
  std::stop_source count_stop_;  // of counts, and of what other hosts call for, which Hold does not end
  std::thread thread_;
};

}  // namespace cairnfs::fs
