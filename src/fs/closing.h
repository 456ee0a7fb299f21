// Closing: what close(2) and unlock wait for, and the locks that a close frees, where the daemon keeps them. On a host
// alone they do not wait. Among several hosts they return when other hosts see what was written
// (docs/cluster/publishing.md).
#pragma once

#include <functional>

#include "coherence/file_locks.h"
#include "fs/calls.h"
#include "fs/contents.h"
#include "fs/error_names.h"
#include "fs/handle.h"
#include "fs/host_session.h"
#include "fs/marks.h"
#include "fs/waits.h"

namespace cairnfs::fs {

// The error that this handle was not told yet, if any.
Status TakeError(const InodePtr& inode, Handle& handle) REQUIRES_LOCK(inode->mutex);
Status TakeErrorLocked(Handle& handle);  // takes the inode's lock itself

// After a round of kClosed, among several hosts: an error if the file is not published.
Status CheckPublished(const InodePtr& inode);
// After a round that ended with `round` and was to publish the file: what to tell its closer. `under`: the session
// under which the file was written.
Status CheckOutcome(const HostSession& session, const InodePtr& inode, uint64_t under, Status round);

// Calls `then`, on a thread that may wait, when everything that was closed before is durable, or the caller is being
// killed.
struct RoundWait {  // all outlive it
  SyncRounds& rounds;
  Waits& waits;
  Calls& calls;
};
void AfterClosed(const RoundWait& at, const Caller& caller, Done<void> then);
// For what removes or replaces something: the same for bytes that no close waits for; all others were durable before
// their close returned. What makes room never depends on room, nor on copies: where these cannot be made at present, or
// rounds fail, `then` is called without a wait. If there is nothing to wait for it is called on this thread. The only
// error is kInterrupted.
void AfterUnawaited(const RoundWait& at, ClusterHost& host, const Caller& caller, Done<void> then);

// Where a function has a body here, that is what a host alone does.
class Closing {
 public:
  virtual ~Closing() = default;
  struct Descriptor {
    HandleId handle = 0;
    uint64_t lock_owner = 0;  // the kernel's number of the process that closes it
  };
  // A close(2) of one descriptor of the handle.
  virtual void Close(const HandlePtr& handle, const Descriptor& closed, const Caller& caller, Done<void> done) = 0;
  // The last descriptor is gone. Frees its flocks and OFD locks, of which the kernel tells neither unlock nor owner,
  // once what was written under them is published.
  virtual void FreeLocks(const HandlePtr& handle, HandleId id) = 0;
  // Ends all waits for locks; later ones end at once.
  virtual void EndWaits() = 0;
  // The last descriptor of a handle with these flags is gone.
  virtual void NoteReleased([[maybe_unused]] const InodePtr& inode, const OpenFlags& /*flags*/)
      REQUIRES_LOCK(inode->mutex) {}
  // The caller writes through the handle: its close counts, and waits among several hosts.
  virtual void NoteWriter(Handle& /*handle*/, const Caller& /*caller*/) {}
  // Whether a mark must be put: stores through a mapping came, the descriptor may be closed, and there is no mark.
  virtual bool MustMark(const InodePtr& /*inode*/) { return false; }
  // Calls `answer` when the mark is in the store, or cannot be put.
  virtual void AnswerOnceMarked(const InodePtr& /*inode*/, std::function<void()> answer) { answer(); }
  // Whether pages that were refused with this error are lost bytes of the file. If not, all unpublished bytes are lost.
  virtual bool CountsAsLost(const Error& /*why*/) const { return true; }
  // FileSystem::PublishBeforeUnlock.
  virtual void PublishBeforeUnlock(const HandlePtr& /*handle*/, const Caller& /*caller*/, std::function<void()> then) {
    then();
  }
  // Calls `then` when what the file has that is not published is published, or cannot be. The only error is
  // kInterrupted.
  virtual void PublishFirst(const InodePtr& /*inode*/, const Caller& /*caller*/, Done<void> then) { then({}); }
  // Whether all of the file is durable at level `local`, so that a sync of it need not wait for other files.
  virtual bool IsDurableHere(const InodePtr& /*inode*/) const { return false; }
  // At a stop: asks for the publish of all marked files, whoever has them open.
  virtual void AskForMarked() {}
};

class LocalClosing final : public Closing {
 public:
  struct Parts {  // all outlive it
    Streams& streams;
    SyncRounds& rounds;
    ErrorNames& error_names;
    coherence::FileLocks& locks;
  };
  explicit LocalClosing(const Parts& parts) : at_(parts) {}

  void Close(const HandlePtr& handle, const Descriptor& closed, const Caller& caller, Done<void> done) override;
  void NoteWriter(Handle& handle, const Caller& caller) override;
  void FreeLocks(const HandlePtr& handle, HandleId id) override { at_.locks.ReleaseHandle(handle->inode->id, id); }
  void EndWaits() override { at_.locks.EndWaits(); }

 private:
  static bool MayHaveWritten(Handle& handle, const Caller& caller);
  // An error if the disk failed before accepted bytes of the file were durable: their close must tell it.
  Status CheckDisk(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);

  const Parts at_;
};

class SharedClosing final : public Closing {
 public:
  struct Parts {  // all outlive it
    Marks& marks;
    ClusterHost& host;
    const SharedSession& session;
    InodeTable& table;
    Streams& streams;
    Contents& contents;
    SyncRounds& rounds;
    SharedCalls& calls;
    Waits& waits;
    ErrorNames& error_names;
    coherence::FileLocks& locks;
  };
  explicit SharedClosing(const Parts& parts) : at_(parts) {}

  void Close(const HandlePtr& handle, const Descriptor& closed, const Caller& caller, Done<void> done) override;
  void FreeLocks(const HandlePtr& handle, HandleId id) override;
  void EndWaits() override { at_.locks.EndWaits(); }
  void NoteReleased(const InodePtr& inode, const OpenFlags& flags) override REQUIRES_LOCK(inode->mutex);
  void NoteWriter(Handle& handle, const Caller& caller) override;
  bool MustMark(const InodePtr& inode) override;
  void AnswerOnceMarked(const InodePtr& inode, std::function<void()> answer) override;
  // Any other error means a lost session, which takes all unpublished bytes with it.
  bool CountsAsLost(const Error& why) const override {
    return why.code == ErrorCode::kNoSpace || why.code == ErrorCode::kQuotaExceeded;
  }
  void PublishBeforeUnlock(const HandlePtr& handle, const Caller& caller, std::function<void()> then) override;
  void PublishFirst(const InodePtr& inode, const Caller& caller, Done<void> then) override;
  bool IsDurableHere(const InodePtr& inode) const override;
  void AskForMarked() override;

 private:
  // Who closes a descriptor: each dup, fork and exec sends a close.
  enum class Closer {
    kOther,         // did not write through it, and a process that did is still there
    kWriter,        // waits for the publish; also the last one when those that wrote are gone
    kKilledWriter,  // ends by a signal, and does not wait
  };
  static Closer Judge(Handle& handle, const Caller& caller);
  void AwaitPublish(const HandlePtr& handle, const Caller& caller, Done<void> done);
  Status BeginClose(Handle& handle, Closer closer);
  // The next round is to publish all that it has. False: that is nothing.
  static bool AskForAll(const InodePtr& inode);
  // True also if the file needs no mark, because nothing of it is unpublished.
  static bool IsMarked(const InodePtr& inode);
  // The close does not wait any longer: its bytes are for a round in the background.
  static void NoteUnawaited(const InodePtr& inode);

  const Parts at_;
};

}  // namespace cairnfs::fs
