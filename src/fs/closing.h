// Closing: what close(2) and unlock wait for, and the locks that end with a close. On a host alone they do not wait,
// and the kernel keeps the locks. Among several they return when other hosts see what was written
// (docs/cluster/publishing.md).
#pragma once

#include <functional>

#include "coherence/cluster_locks.h"
#include "fs/calls.h"
#include "fs/contents.h"
#include "fs/error_names.h"
#include "fs/handle.h"
#include "fs/host_session.h"
#include "fs/marks.h"
#include "fs/waits.h"

namespace cairnfs::fs {

// The error that this handle has not been told yet.
Status TakeError(const InodePtr& inode, Handle& handle) REQUIRES_LOCK(inode->mutex);
Status TakeErrorLocked(Handle& handle);  // takes the inode's lock itself

// Of a file after a round for what is closed: why it is not published, if so. Among other hosts.
Status CheckPublished(const InodePtr& inode);
// Of a file that was to be published by a round that ended so; the session under which it was written.
Status CheckOutcome(const HostSession& session, const InodePtr& inode, uint64_t under, Status round);

// Once what was closed before is durable, or the caller is being killed: on a thread that may wait.
struct RoundWait {  // all outlive it
  SyncRounds& rounds;
  Waits& waits;
  Calls& calls;
};
void AfterClosed(const RoundWait& at, const Caller& caller, Done<void> then);
// The same of what no close waits for, and on this thread where there is none: the rest was durable before its close
// returned.
void AfterUnawaited(const RoundWait& at, const UnawaitedFiles& files, const Caller& caller, Done<void> then);

class Closing {
 public:
  virtual ~Closing() = default;
  struct Descriptor {
    HandleId handle = 0;
    uint64_t lock_owner = 0;  // the kernel's number of the process that closes it
  };
  // A close(2) of one descriptor of the handle.
  virtual void Close(const HandlePtr& handle, const Descriptor& closed, const Caller& caller, Done<void> done) = 0;
  // The last descriptor is gone: flocks, and OFD locks, for which the kernel sends no unlock and no owner, go once what
  // was written under them is published.
  virtual void FreeLocks(const HandlePtr& handle, HandleId id) = 0;
  // Nobody waits for a lock from now on.
  virtual void EndWaits() = 0;
  // The last descriptor of a handle with these flags is gone.
  virtual void NoteReleased(const InodePtr& inode, const OpenFlags& flags) REQUIRES_LOCK(inode->mutex) = 0;
  // The caller writes through the handle: his close waits.
  virtual void NoteWriter(Handle& handle, const Caller& caller) = 0;
  // Stores through a mapping came of a file that no mark tells of, and whose descriptor may be closed.
  virtual bool MustMark(const InodePtr& inode) = 0;
  // Calls `answer` once other hosts know that they are not published, or it is known that they cannot be told.
  virtual void AnswerOnceMarked(const InodePtr& inode, std::function<void()> answer) = 0;
  // Whether pages that were refused for this reason are bytes that the file has lost. Else they went with more.
  virtual bool CountsAsLost(const Error& why) const = 0;
  // FileSystem::PublishBeforeUnlock.
  virtual void PublishBeforeUnlock(const HandlePtr& handle, const Caller& caller, std::function<void()> then) = 0;
  // Whether all of the file is durable at level `local`: what other files wait for is no matter then.
  virtual bool IsDurableHere(const InodePtr& inode) const = 0;
  // At a stop: of all files, whoever has them open.
  virtual void AskForMarked() = 0;
};

class LocalClosing final : public Closing {
 public:
  struct Parts {  // all outlive it
    Streams& streams;
    SyncRounds& rounds;
    ErrorNames& error_names;
  };
  explicit LocalClosing(const Parts& parts) : at_(parts) {}

  void Close(const HandlePtr& handle, const Descriptor& closed, const Caller& caller, Done<void> done) override;
  void FreeLocks(const HandlePtr&, HandleId) override {}
  void EndWaits() override {}
  void NoteReleased(const InodePtr&, const OpenFlags&) override {}
  void NoteWriter(Handle&, const Caller&) override {}
  bool MustMark(const InodePtr&) override { return false; }
  void AnswerOnceMarked(const InodePtr&, std::function<void()> answer) override { answer(); }
  bool CountsAsLost(const Error&) const override { return true; }
  void PublishBeforeUnlock(const HandlePtr&, const Caller&, std::function<void()> then) override { then(); }
  bool IsDurableHere(const InodePtr&) const override { return false; }
  void AskForMarked() override {}

 private:
  // Bytes of the file were accepted and the disk failed before they were durable: not silent at their close.
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
    coherence::ClusterLocks& locks;
  };
  explicit SharedClosing(const Parts& parts) : at_(parts) {}

  void Close(const HandlePtr& handle, const Descriptor& closed, const Caller& caller, Done<void> done) override;
  void FreeLocks(const HandlePtr& handle, HandleId id) override;
  void EndWaits() override { at_.locks.EndWaits(); }
  void NoteReleased(const InodePtr& inode, const OpenFlags& flags) override REQUIRES_LOCK(inode->mutex);
  void NoteWriter(Handle& handle, const Caller& caller) override;
  bool MustMark(const InodePtr& inode) override;
  void AnswerOnceMarked(const InodePtr& inode, std::function<void()> answer) override;
  // With the host's session went all that was not published.
  bool CountsAsLost(const Error& why) const override { return why.code == ErrorCode::kNoSpace; }
  void PublishBeforeUnlock(const HandlePtr& handle, const Caller& caller, std::function<void()> then) override;
  bool IsDurableHere(const InodePtr& inode) const override;
  void AskForMarked() override;

 private:
  // Who closes a descriptor: each dup, fork and exec sends a close.
  enum class Closer {
    kOther,         // did not write through it, and who did is still there
    kWriter,        // waits for the publish; also who is left once those who wrote are gone
    kKilledWriter,  // ends by a signal, and does not wait
  };
  static Closer Judge(Handle& handle, const Caller& caller);
  void AwaitPublish(const HandlePtr& handle, const Caller& caller, Done<void> done);
  Status BeginClose(Handle& handle, Closer closer);
  // Or need not be: nothing of it is unpublished.
  static bool IsMarked(const InodePtr& inode);
  // Of a close that waits no more.
  static void NoteUnawaited(const InodePtr& inode);

  const Parts at_;
};

}  // namespace cairnfs::fs
