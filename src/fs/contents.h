// Contents: the bytes of files, in memory and stored. Loads them, makes changes that are not writes, and finds out what
// a range has. Knows neither names nor other hosts.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "base/task_queue.h"
#include "fs/file_records.h"
#include "fs/handle.h"
#include "fs/inode.h"
#include "fs/room.h"
#include "fs/streams.h"
#include "fs/sync_rounds.h"

namespace cairnfs::fs {

// A change of a file's content other than a write.
struct FileChange {
  InodePtr inode;
  // Called with the inode's lock and an Operation held; may wait for chunks.
  std::function<Status(Content&)> apply;
  bool empties = false;    // no byte of the old content stays, so it need not be readable
  bool removes = false;    // it cuts bytes off. In a cluster, bytes that no close waits for must be durable before
  bool publishes = false;  // other hosts see the change when it is answered
  bool adds = false;       // it adds bytes, for which the caller's user must have room for metadata
  uint64_t session = 0;    // of the open file through which it is made; 0: there is none, and the host's counts
  std::optional<Kills> kills = {};  // what the change of the bytes takes away; nullopt: it changes none
  Caller caller;
};

class Contents {
 public:
  // All outlive it.
  Contents(const FileSystem::Parts& parts, FileRecords& records, InodeTable& table, Streams& streams,
           SyncRounds& rounds, Room& room, TaskQueue& waiters)
      : parts_(parts),
        records_(records),
        table_(table),
        streams_(streams),
        rounds_(rounds),
        room_(room),
        waiters_(waiters) {}

  // Reads the inode's record if its content is not in memory. False: that would have to wait for chunks.
  Result<bool> Load(const Context& context, const InodePtr& inode, MayWait may_wait) REQUIRES_LOCK(inode->mutex);
  Status Load(const Context& context, const InodePtr& inode) REQUIRES_LOCK(inode->mutex);  // may wait
  // Drops the content if nobody has the file open and its record has all of it.
  void DropIfUnused(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  void MarkChanged(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);  // REQUIRES (unchecked): an Operation is held
  static void Touch(Content& content);                                  // mtime and ctime are now
  // Puts size and times of the content in memory into attributes from the namespace. False: no content is in memory.
  bool Overlay(meta::Attr& attr);
  // Chunks that are written from now on are stored for the new owner. Older ones stay as they are.
  void NoteOwner(InodeId id, uint32_t uid);

  // Makes the change when nothing of the file is in flight or in a round, and its record has room. nullopt: that would
  // have to wait.
  std::optional<Status> TryChange(const FileChange& change, MayWait may_wait);
  // Whether it is a lack of room for names and records that the trash may end: for Change, which waits for that.
  bool MayMakeRoomFor(const Status& status) const {
    return !status.ok() && status.error().code == ErrorCode::kNoSpace && room_.LacksNames() && room_.HoldsTrash();
  }
  Status Change(const FileChange& change);  // blocks

  Status Truncate(const InodePtr& inode, uint64_t size) REQUIRES_LOCK(inode->mutex);
  // Makes [offset, offset + length) a hole.
  Status Punch(const InodePtr& inode, uint64_t offset, uint64_t length) REQUIRES_LOCK(inode->mutex);
  // Whether Lay may follow, with the lock held until then. kNotSupported: as there.
  Status CheckMayLay(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // Puts these extents, which have pins, in place of what the range had. kNotSupported: the kernel reads the file past
  // the daemon, and would have to be given their bytes. It then copies by reading and writing.
  Status Lay(const InodePtr& inode, uint64_t offset, uint64_t length, const std::vector<Extent>& extents,
             std::vector<store::ChunkPin> pins) REQUIRES_LOCK(inode->mutex);
  // How many bytes of the range are neither stored nor accepted.
  Result<uint64_t> BytesMissingIn(const InodePtr& inode, uint64_t begin, uint64_t end) REQUIRES_LOCK(inode->mutex);
  Result<uint64_t> FindSought(const Context& context, const InodePtr& inode, uint64_t offset, FileSystem::Seek what);
  // Waits until all accepted bytes of [offset, offset + length) are stored, and returns the extents. Adds a pin of each
  // to `pins`, unless that is null. Lowers `length` to what the file has.
  Result<std::vector<Extent>> StoredExtents(const Context& context, const InodePtr& inode, uint64_t offset,
                                            uint64_t& length, std::vector<store::ChunkPin>* pins);

  // Bytes that the kernel writes back of its page cache. True: the caller is to call Streams::BeginCut.
  bool AcceptPages(const InodePtr& inode, uint64_t offset, const io::Slice& data) REQUIRES_LOCK(inode->mutex);
  void LosePages(const InodePtr& inode, uint64_t offset, uint64_t length) REQUIRES_LOCK(inode->mutex);
  // [begin, end) was changed below the kernel's page cache: what the kernel writes back there is older, until it has
  // read the pages again.
  void NoteUnderPages(const InodePtr& inode, uint64_t begin, uint64_t end) REQUIRES_LOCK(inode->mutex);

  // The pool is empty and got no buffer back for this long. Makes files give buffers back, on another thread.
  void NotePressure(std::chrono::milliseconds without_release);

 private:
  static NameChange NameChangeOf(const FileChange& change, const Content& content);
  static NameChange NameChangeOf(const FileChange& change) EXCLUDES_LOCK(change.inode->mutex);
  void GiveBackBuffers(std::chrono::milliseconds without_release);
  void LoadPages(const Context& context, const InodePtr& inode, uint64_t offset, uint64_t length);
  void ForgetOldWrites(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);

  const FileSystem::Parts& parts_;
  FileRecords& records_;
  InodeTable& table_;
  Streams& streams_;
  SyncRounds& rounds_;
  Room& room_;
  TaskQueue& waiters_;

  std::atomic<bool> is_pressure_posted_{false};
  std::atomic<std::chrono::milliseconds> pressure_without_release_{};  // the longest told since the last pass
};

}  // namespace cairnfs::fs
