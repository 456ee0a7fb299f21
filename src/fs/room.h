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
#include "fs/trash.h"
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
  void Stop() { waiters_.reset(); }                // runs what was posted
  void SetTrash(Trash* trash) { trash_ = trash; }  // which outlives it; before any other call
  // Among several hosts: whether chunks wait for nodes that take them. Before the trash is started.
  void SetLacksNodes(std::function<bool()> lacks_nodes) { lacks_nodes_ = std::move(lacks_nodes); }
  // Whether the trash may make room, or does just now.
  bool HoldsTrash() const { return is_emptying_ || (trash_ != nullptr && trash_->HoldsAny()); }
  // No name or record of a user's finds room. Where there is some, who is refused has had a user's share of it, which
  // the trash does not end.
  bool LacksNames() const { return names_.BytesForUsers(rounds_.UnwrittenBytes()) == 0; }
  // For who was told of a lack that the trash may end: what it holds goes, the oldest first, and then `then` is run on
  // another thread. `emptyings`: before the try that failed. False: nobody can make room.
  bool EmptyTrashThen(uint64_t emptyings, std::function<void(bool has_made)> then);
  // How often that was done for who lacked room. Who is refused tries again where it went up since it tried, and
  // empties no more: so many who meet the same lack empty once.
  uint64_t emptyings() const { return emptyings_; }

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
  // For who may wait, holds nothing, and was refused this change (and perhaps for another reason): whether to try
  // again. `emptyings`: before it tried.
  bool MakeRoomForNames(const Wanted& wanted, uint64_t emptyings) EXCLUDES_LOCK(emptying_);
  // For who may wait, and holds nothing: what `attempt` returns, a Result or Status, but kNoSpace only once the trash
  // is empty.
  template <typename Attempt>
  auto OnceThereIsRoom(Attempt attempt) -> decltype(attempt()) {
    auto result = attempt();
    const auto lacks_room = [&] { return !result.ok() && result.error().code == ErrorCode::kNoSpace; };
    const auto is_settled = [&] {
      if (lacks_room()) result = attempt();
      return !lacks_room();
    };
    if (!lacks_room() || !LacksNames() || !HoldsTrash()) return result;
    while (!is_settled() && EmptyTrashUnless(is_settled)) AwaitNames(is_settled);
    return result;
  }
  void NoteFreed(uint64_t bytes);  // a collection may find so much
  void NoteRemoved() { free_count_++; }
  // Accepted bytes found no space. True: the trash is emptied for them, and they are tried again, so it is no news yet.
  bool NoteNone();
  // Whether accepted bytes that are not on the disk yet may find no space there. What was reserved for them is an
  // estimate, and the disk has other users.
  bool MayBeShort() const;
  // FileSystem::WhyNoBufferComes.
  std::optional<Error> WhyNoBufferComes(std::chrono::milliseconds without_release, Clock::time_point waits_since);

 private:
  Status ReserveOrWait(const Wanted& wanted);
  Status ReserveAfterCollection(const Wanted& wanted);
  // Whether something went, and was collected. `has_room` is asked once those before have made room.
  bool EmptyTrashUnless(const std::function<bool()>& has_room) EXCLUDES_LOCK(emptying_);
  bool EmptyTrashSince(uint64_t emptyings) {
    return EmptyTrashUnless([this, emptyings] { return emptyings_ != emptyings; });
  }
  bool IsLocalRoomShort() const;
  bool MayWaitForNames(NameChange change) const;
  Status CollectEmptied() REQUIRES_LOCK(emptying_);
  // The room of names that were deleted comes back later: waits for that, or for long.
  void AwaitNames(const std::function<bool()>& has_room);
  void Poll(int times, const std::function<bool()>& has_room);
  Status AdmitWithTrash(NameChange change, uint32_t uid);
  Error WhyNoSpace(const Wanted& wanted);
  struct Collected {
    std::chrono::nanoseconds taken{};
    Status status;
  };
  Collected CollectAndWait();
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

  Trash* trash_ = nullptr;
  Mutex emptying_;  // one at a time, until it is known how much room that made
  std::atomic<uint64_t> emptyings_{0};
  std::atomic<bool> is_emptying_{false};     // `emptying_` is held, and what goes has not made all its room yet
  std::atomic<bool> is_making_room_{false};  // for accepted bytes: that was posted
  std::function<bool()> lacks_nodes_;

  std::unique_ptr<TaskQueue> waiters_;  // writes that wait for space: those that need none pass them by
};

}  // namespace cairnfs::fs
