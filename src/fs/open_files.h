// OpenFiles: making, opening, syncing and closing files.
#pragma once

#include <atomic>
#include <string_view>

#include "fs/services.h"

namespace cairnfs::fs {

class OpenFiles {
 public:
  explicit OpenFiles(const Services& services) : at_(services) {}

  // Makes and opens; kAlreadyExists if the name is there.
  Result<FileSystem::Created> Create(const Context& context, InodeId parent, std::string_view name,
                                     const meta::CreateParams& params, const OpenFlags& flags);
  // Create has failed with kQuotaExceeded: calls `done` on another thread once something fits, or with why not.
  void AwaitMayCreate(InodeId directory, const Caller& caller, Done<void> done);
  // kIsDirectory, kNotFound. With truncate: as ftruncate to 0 first. kInterrupted: the caller was killed while it
  // waited for hosts that do not answer. kStale: it is to be opened by the node id beside. With `executes`, as long as
  // the kernel may take a mode for the file's that has set-id bits and is not: kBusy, and kStale where it helps that it
  // asks for the mode once more.
  void Open(InodeId inode, const OpenFlags& asked, Done<HandleId> done, const Caller& caller = {});
  // close(2) of one descriptor. Among other hosts it waits until what its process wrote is published; who else has the
  // descriptor, or is killed, does not. Then it frees the record locks that their `lock_owner` has on the file.
  void Flush(const Closing::Descriptor& closed, Done<void> done, const Caller& caller = {});
  // Whether the thread, which looks the file up, is to get the node id beside its own (fs/open_modes.h). 0: any.
  bool NamesBeside(InodeId inode, uint32_t thread = 0);
  // Whether the kernel may know the file by both ids, or is about to. What it remembers of one is not changed by the
  // other.
  bool MayHaveTwoIds(InodeId inode);
  // Whether an open of the thread that cannot be passed is to go by that id: then its look-up finds that.
  bool MustGoBeside(InodeId inode, uint32_t thread = 0);
  // Whether truncate(2) by that id or the other is to go by the other, to which a look-up leads then.
  bool MustCutElsewhere(InodeId inode, bool is_beside);
  // With which file in memory the open is to be answered; 0: with none.
  BackingId BackingOf(HandleId handle);
  // The last descriptor is gone, and with it all that was locked through it.
  void Release(HandleId handle);
  // Of a file or directory. kInterrupted: the caller was killed meanwhile.
  void Fsync(HandleId handle, InodeId inode, Done<void> done, const Caller& caller = {});
  uint64_t count() const { return count_; }

 private:
  // An inode that an open holds while it has no handle yet: should its last name go meanwhile, its bytes stay.
  class Held;
  static Error SessionWasLost();
  // Of a file that did not lie below a seal.
  void OpenUnsealed(InodeId id, const OpenFlags& flags, Done<HandleId> done, const Caller& caller);

  // Whether the open may be passed, as far as it goes by who opens what: root and the owner, who could change the file
  // anyway, and others where nobody can. A stranger who was passed could keep a writer from the file's own node id, and
  // pin its memory. REQUIRES: the flags may_pass.
  bool MayPass(InodeId id, const Caller& caller);
  // Whether an open is to be sent to the node id beside.
  bool IsSent(InodeId id, const OpenFlags& flags, uint32_t thread);
  // kStale: it is to be opened by the node id beside.
  Result<HandleId> AddHandle(const InodePtr& inode, const OpenFlags& flags, const Caller& opener)
      REQUIRES_LOCK(inode->mutex);
  // What else there is of a file as an open begins that empties it.
  struct Others {
    bool may_lose = false;     // somebody writes to it, has written what is not published, or is to be told of a loss
    uint64_t write_opens = 0;  // until then
    uint64_t errors = 0;       // of the file
  };
  // The open has a handle, or what came before it has failed.
  Result<HandleId> FinishOpen(const InodePtr& inode, const OpenFlags& flags, const Others& others, const Caller& caller,
                              Status status);
  static Others OthersOf(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  void NoteTruncationFailed(const InodePtr& inode, const Others& others, const Error& why) REQUIRES_LOCK(inode->mutex);

  const Services at_;
  std::atomic<uint64_t> count_{0};
};

// After a sync point: what the round that made it did not make durable of this file.
Status CheckSynced(const HostSession& session, Handle& handle);

}  // namespace cairnfs::fs
