// Room on a host's disk for names, attributes and records of files: who may take of it while it gets short, and who
// has. Of the host that keeps the names, which may be those of several hosts (kv::HostedStore::SetNameRoom).
//
//   - Once it is gone nothing that makes names, or adds bytes to files, is let in. A fifth of the reserve is left.
//   - A tenth of the reserve later, nothing that alters them is let in either. So removing and shortening them stay
//     possible (store::LocalChunkStore::MetadataRoom).
//   - A fifth of the reserve before it is gone, of those that make only root and the user whom the daemon runs as are.
//   - Of the others, one whose own entries take more than half of all room for metadata is not let in once less than a
//     quarter of it is left: that is for the rest.
// Whose entries take what is counted by reading them all: seldom, in the background, and only while less than half of
// the room is left and others than root make names. So the last rule knows what a user had some seconds ago.
#pragma once

#include <unistd.h>

#include <map>
#include <vector>

#include "base/clock.h"
#include "base/task_queue.h"
#include "base/thread_annotations.h"
#include "fs/filesystem.h"
#include "kv/name_room.h"
#include "kv/shared_store.h"

namespace cairnfs::fs {

// What each user's entries take, by uid, the largest first; before compression. Names count for the owner of what they
// name. The entries change meanwhile: each counts as it was at some moment of the call. kInterrupted once the context
// has expired.
Result<std::vector<MetadataOwner>> CountByOwner(const Context& context, kv::KvStore& kv);

class MetadataRoom final : public kv::NameRoom {
 public:
  // Of the names in `kv`, on the disk of `chunks`. `waiters` counts. All outlive this.
  MetadataRoom(kv::KvStore& kv, store::LocalChunkStore& chunks, TaskQueue& waiters, Context until_stop);

  Status Judge(NameChange change, uint32_t uid, uint64_t unwritten_bytes) override;
  uint64_t BytesForUsers(uint64_t unwritten_bytes) const override;

 private:
  Status JudgeMaker(uint32_t uid, uint64_t room);
  bool HoldsTooMuch(uint32_t uid, uint64_t room);
  void CountInBackground();

  kv::KvStore& kv_;
  store::LocalChunkStore& chunks_;
  TaskQueue& waiters_;
  const Context until_stop_;
  const uint32_t own_uid_;

  Mutex mutex_;
  std::map<uint32_t, uint64_t> bytes_by_uid_ GUARDED_BY(mutex_);  // as of the last count
  uint64_t counted_bytes_ GUARDED_BY(mutex_) = 0;
  bool is_counting_ GUARDED_BY(mutex_) = false;
  Clock::time_point not_counted_before_ GUARDED_BY(mutex_){};
};

// What a host among several was told of the room where the names are kept: those whom that place would let make no name
// write no bytes either, before they are accepted. What is published is judged there.
class ToldNameRoom final : public kv::NameRoom {
 public:
  explicit ToldNameRoom(const kv::SharedKvStore& store) : store_(store), own_uid_(geteuid()) {}  // outlives it
  Status Judge(NameChange change, uint32_t uid, uint64_t unwritten_bytes) override;
  uint64_t BytesForUsers(uint64_t) const override { return store_.RoomForNames().value_or(UINT64_MAX); }

 private:
  const kv::SharedKvStore& store_;
  const uint32_t own_uid_;
};

}  // namespace cairnfs::fs
