// Room: waits for disk space for writes, and knows when none will come. Space is for bytes, and for the names and
// records that tell of them.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/task_queue.h"
#include "base/thread_annotations.h"
#include "fs/collector.h"
#include "fs/sync_rounds.h"
#include "kv/name_room.h"
#include "store/local_chunk_store.h"

namespace cairnfs::fs {

class Room {
 public:
  // All outlive it.
  struct Parts {
    store::LocalChunkStore& chunks;
    kv::NameRoom& names;
    SyncRounds& rounds;
    Collector& collection;
  };
  explicit Room(const Parts& parts);
  void Stop() { waiters_.reset(); }  // runs what was posted

  // All functions may be called from any thread at once.
  // A change of this user's, which takes room for so many bytes.
  struct Wanted {
    NameChange change = NameChange::kAlters;
    uint32_t uid = 0;
    uint64_t bytes = 0;
  };
  // Whether there is room for what is to tell of the change; with Reserve also for its bytes, which are reserved then.
  bool Has(const Wanted& wanted) { return names_.Judge(wanted.change, wanted.uid, rounds_.UnwrittenBytes()).ok(); }
  bool Reserve(const Wanted& wanted) { return Has(wanted) && chunks_.TryReserve(wanted.bytes); }
  // For a nearly full disk: reserves space, then calls `write` on another thread, perhaps seconds later. kNoSpace, or
  // the disk's error.
  void WaitForSpace(const Wanted& wanted, Done<void> write);
  // Calls `go` once the change may be made: at once, unless it is to be known first how much room was taken by what was
  // let in before. kNoSpace, or the error of a round.
  void WhenAdmitted(NameChange change, uint32_t uid, Done<void> go);
  // Whether it may be made now, for a change that is refused if not.
  Status Admit(NameChange change, uint32_t uid) { return names_.Admit(change, uid, rounds_.UnwrittenBytes()); }
  void NoteFreed(uint64_t bytes);  // a collection may find so much
  void NoteRemoved() { free_count_++; }
  // Accepted bytes found no space.
  void NoteNone();
  // Whether accepted bytes that are not on the disk yet may find no space there. What was reserved for them is an
  // estimate, and the disk has other users.
  bool MayBeShort() const;
  // FileSystem::WhyNoBufferComes.
  std::optional<Error> WhyNoBufferComes(std::chrono::milliseconds without_release, Clock::time_point waits_since);

 private:
  Status ReserveOrWait(const Wanted& wanted);
  Error WhyNoSpace(const Wanted& wanted);
  std::chrono::nanoseconds CollectAndWait();  // how long that took
  // Tries once more to store accepted bytes that found no space. An error: why they still wait.
  std::optional<Error> RetryWithoutRoom();
  void Probe();

  store::LocalChunkStore& chunks_;
  kv::NameRoom& names_;
  SyncRounds& rounds_;
  Collector& collection_;
  std::atomic<Clock::time_point> vain_until_{Clock::time_point(-std::chrono::hours(1))};  // after one in vain
  std::atomic<uint64_t> runs_at_vain_collection_{0};
  // How often something was freed; and before that collection.
  std::atomic<uint64_t> free_count_{0}, free_count_at_vain_collection_{0};
  std::atomic<bool> found_none_{false};  // accepted bytes found no room when they were last tried
  std::atomic<Clock::time_point> none_at_{Clock::time_point(-std::chrono::hours(1))};  // the last of them

  Mutex mutex_;
  bool is_probing_ GUARDED_BY(mutex_) = false;
  std::optional<Error> why_ GUARDED_BY(mutex_);       // what the last probe found
  uint64_t probe_free_count_ GUARDED_BY(mutex_) = 0;  // before it
  Clock::time_point probe_began_at_ GUARDED_BY(mutex_), probe_ended_at_ GUARDED_BY(mutex_);

  std::unique_ptr<TaskQueue> waiters_;  // writes that wait for space: those that need none pass them by
};

}  // namespace cairnfs::fs
