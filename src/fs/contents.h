// Contents: the bytes of files, in memory and stored. Loads them, changes them other than by a write, and finds what
// lies where. Knows neither names nor other hosts.
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

// A change of a file's content that is no write.
struct FileChange {
  InodePtr inode;
  // Called with the inode's lock and an Operation held; may wait for chunks.
  std::function<Status(Content&)> apply;
  bool empties = false;    // it leaves no byte of the old content, which need not be readable
  bool removes = false;    // it cuts bytes off: in a cluster what no close waits for is durable first
  bool publishes = false;  // other hosts see it once the answer is given
  uint64_t session = 0;    // of the open file that it goes through; 0: through none, and the host's is taken
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

  // Reads the inode's record if its content is not in memory. False when that would have to wait for chunks.
  Result<bool> Load(const Context& context, const InodePtr& inode, MayWait may_wait) REQUIRES_LOCK(inode->mutex);
  Status Load(const Context& context, const InodePtr& inode) REQUIRES_LOCK(inode->mutex);  // may wait
  // Once nobody has the file open, and its record tells all there is to know.
  void DropIfUnused(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  void MarkChanged(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);  // REQUIRES (unchecked): an Operation is held
  static void Touch(Content& content);                                  // mtime and ctime are now
  // Lays what is in memory over attributes from the namespace. False: there is nothing in memory.
  bool Overlay(meta::Attr& attr);
  // What is written from now on is the new owner's; what was written stays the chunks of the one before.
  void NoteOwner(InodeId id, uint32_t uid);

  // Makes the change once nothing of the file is in flight or in a round. One attempt: nullopt when it would have
  // to wait.
  std::optional<Status> TryChange(const FileChange& change, MayWait may_wait);
  Status Change(const FileChange& change);  // blocks

  Status Truncate(const InodePtr& inode, uint64_t size) REQUIRES_LOCK(inode->mutex);
  // Makes [offset, offset + length) a hole.
  Status Punch(const InodePtr& inode, uint64_t offset, uint64_t length) REQUIRES_LOCK(inode->mutex);
  // Has the range name these extents, which have pins.
  Status Lay(const InodePtr& inode, uint64_t offset, uint64_t length, const std::vector<Extent>& extents,
             std::vector<store::ChunkPin> pins) REQUIRES_LOCK(inode->mutex);
  // How many bytes of the range the file has neither stored nor accepted.
  Result<uint64_t> BytesMissingIn(const InodePtr& inode, uint64_t begin, uint64_t end) REQUIRES_LOCK(inode->mutex);
  Result<uint64_t> FindSought(const Context& context, const InodePtr& inode, uint64_t offset, FileSystem::Seek what);
  // The extents of [offset, offset + length) with everything accepted before the call in them; `pins` takes a pin for
  // each, unless it is null. Lowers `length` to what the file has. Waits.
  Result<std::vector<Extent>> StoredExtents(const Context& context, const InodePtr& inode, uint64_t offset,
                                            uint64_t& length, std::vector<store::ChunkPin>* pins);

  // Bytes that the kernel writes back of its page cache. True: the caller is to call Streams::BeginCut.
  bool AcceptPages(const InodePtr& inode, uint64_t offset, const io::Slice& data) REQUIRES_LOCK(inode->mutex);
  void LosePages(const InodePtr& inode, uint64_t offset, uint64_t length) REQUIRES_LOCK(inode->mutex);
  // What the kernel writes back from now on in [begin, end) is older than a change of those bytes, until it reads them.
  void NoteUnderPages(const InodePtr& inode, uint64_t begin, uint64_t end) REQUIRES_LOCK(inode->mutex);

  // The pool has run dry, and got no buffer back for so long: has some given back, on another thread.
  void NotePressure(std::chrono::milliseconds without_release);

 private:
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
