// EtcdRoom: who may still take room of an etcd, so that it never comes over its space quota.
//
// Over its quota an etcd refuses everything that puts a key, and each transaction puts its slot: nothing could be
// removed any more. So names are refused before, by what the members tell of themselves (Maintenance.Status) and what
// this host has let in since. An eighth of the quota is kept, 384 MiB at least, or three quarters of a quota that is
// smaller than 512 MiB. By what a member has left of its quota beside what is in use:
//
//   - less than one and a half of what is kept, or of a small quota half of what users get: it is short. The log tells,
//     and the history is compacted all the time;
//   - five quarters: what makes names or adds bytes is refused, but to root and the user whom the daemon runs as;
//   - all of it: to them too; seven eighths: what alters names and lengthens records is refused;
//   - three quarters: what removes waits for a while, so that the compaction keeps up with it.
//
// An etcd counts its file, which does not shrink, and of which it uses again what is free. By what the file has left,
// makers are refused below an eighth of what is kept, and alterations below a sixteenth. Only a defragmentation ends
// that; but the file grows much beyond what is in use only by what one commit of a compaction writes anew, and this is
// what is kept for it (docs/decisions/full-disk.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "kv/name_room.h"
#include "kv/store.h"

namespace cairnfs::kvnet {

// What the transaction takes of a member's quota, with its slot, as etcd estimates it. 0: it writes nothing.
uint64_t EtcdCostOf(const kv::Transaction& transaction);

// All functions: any thread; none waits.
class EtcdRoom final : public kv::NameRoom {
 public:
  // Of one member.
  struct Space {
    std::string address;
    uint64_t quota_bytes = 0;  // 0: it has none
    uint64_t file_bytes = 0, used_bytes = 0;
    uint64_t revision = 0;  // of its last transaction
  };

  EtcdRoom();

  struct Look {
    Clock::time_point began{};
    uint64_t let_in_total = 0;
  };
  Look BeginLook() const;
  // What the members told that answered the look. What was let in just before it still counts, since they tell of it
  // only when it is in the file. Logs that room gets short, and that it is no more.
  void Note(const std::vector<Space>& members, const Look& look);
  // Whether to look again: now and then; and before something is let in that takes so many bytes, since other hosts let
  // in as much meanwhile.
  bool IsLookDue() const;
  bool IsLookDueFor(uint64_t bytes) const;
  void NoteLetIn(uint64_t bytes);

  // Everything is let in while nothing is known. `unwritten_bytes`: what the change takes.
  Status Judge(kv::NameChange change, uint32_t uid, uint64_t unwritten_bytes) override;
  uint64_t BytesForUsers(uint64_t unwritten_bytes) const override;
  bool IsKnown() const;  // and there is a quota
  bool IsShort() const;
  bool SlowsRemovals() const;  // what removes is to wait

  // The revision at which the history is to be compacted before its time: that of the last look, while room is short,
  // and not before the members can be done with the last one. Seldom where it is next to nothing. nullopt: none.
  std::optional<uint64_t> CompactionDue() const;
  // `taken`: how long they said it took; nullopt: longer than was waited for.
  void NoteCompacted(uint64_t revision, std::optional<Clock::duration> taken);

 private:
  // Of the member that has the least of each.
  struct Left {
    uint64_t used = UINT64_MAX, file = UINT64_MAX;
    uint64_t kept = 0;
  };
  Left LeftAfter(uint64_t bytes) const REQUIRES_LOCK(mutex_);
  uint64_t SoonBytes() const REQUIRES_LOCK(mutex_);
  Clock::duration LookInterval() const REQUIRES_LOCK(mutex_);
  void TellWhetherShort() REQUIRES_LOCK(mutex_);
  Error NoRoom(const char* for_whom) const REQUIRES_LOCK(mutex_);

  const uint32_t own_uid_;
  mutable Mutex mutex_;
  bool has_looked_ GUARDED_BY(mutex_) = false;
  Clock::time_point looked_at_ GUARDED_BY(mutex_){};
  std::vector<Space> members_ GUARDED_BY(mutex_);  // with a quota, as told last
  Left left_ GUARDED_BY(mutex_);                   // by these
  uint64_t let_in_total_ GUARDED_BY(mutex_) = 0;
  uint64_t told_total_ GUARDED_BY(mutex_) = 0;  // of that: what the members surely told of
  Look last_look_ GUARDED_BY(mutex_);
  Look next_told_ GUARDED_BY(mutex_);  // what was let in before this one is told of by one that comes later enough
  bool is_short_ GUARDED_BY(mutex_) = false;
  Space largest_ GUARDED_BY(mutex_);                    // of members_, by what is in use
  uint64_t compacted_revision_ GUARDED_BY(mutex_) = 0;  // when it was compacted last
  Clock::time_point not_compacted_before_ GUARDED_BY(mutex_){}, rest_compacted_at_ GUARDED_BY(mutex_){};
};

}  // namespace cairnfs::kvnet
