// Publisher: how a round makes earlier changes durable and visible. A host alone has a LocalPublisher, one of several a
// SharedPublisher. SyncRounds says when.
#pragma once

#include <map>

#include "base/context.h"
#include "fs/dirty_files.h"
#include "fs/filesystem.h"

namespace cairnfs::fs {

class Publisher {
 public:
  virtual ~Publisher() = default;

  // Any thread.

  // Around each operation that changes names, or changes a file other than by a write. A round begins between two
  // operations, never within one.
  virtual void BeginOperation() = 0;
  virtual void EndOperation() = 0;
  // When a change of names may be made. It may have to wait, because names that are not durable yet take memory.
  enum class Admission {
    kAtOnce,
    kWithRound,   // at once, and a round is asked for
    kAfterRound,  // a round has to end first
  };
  virtual Admission Admit(NameChange change) const = 0;
  // Whether a change that would have to wait for a round may go ahead because rounds fail.
  virtual bool AdmitsWhileFailing(NameChange change) const = 0;
  virtual bool HasUnflushedNames() const = 0;
  // Whether each file is published for itself: then a round may take any of them, in any order.
  virtual bool TakesAnyFiles() const { return false; }
  // A file was closed that has so many bytes that are not in a record. Whether AddFreezePoint is to be called.
  virtual bool NoteClosed(uint64_t /*bytes*/) { return false; }
  // A round may make durable what was done before a freeze point, without what was done after it. Waits for operations.
  virtual void AddFreezePoint() {}
  // Before a file that belongs to a freeze point is changed otherwise than by a write, or goes.
  // REQUIRES (unchecked): an operation is under way.
  virtual void DropFreezePoints() {}
  virtual size_t freeze_points() const { return 0; }
  // What names and records take that were let in and are in no log yet, on the disk that has them; at most.
  virtual uint64_t UnwrittenBytes() const = 0;
  // Whether so little is to be done that the thread that asks for a round may run it.
  virtual bool MayRunOnCaller() const = 0;
  // Whether the error means a failed disk, which does not end by waiting.
  virtual bool IsDiskFailure(const Error& error) const = 0;
  // A round was opened and is not finished.
  virtual bool is_open() const = 0;
  // Files whose records are made and not durable yet, with the bytes that these brought. Others count as changed.
  virtual std::map<InodeId, uint64_t> Unflushed() const { return {}; }

  // The thread that runs the round calls these in this order. If the last round is still open, it calls Finish again.

  // Finds out what became of transactions whose answers were lost. No round goes on before that is known.
  virtual Status ResolveDoubt() = 0;
  // Takes over what was changed before the call.
  virtual void Open(const DirtyFiles::Selection& selection) = 0;
  struct Round {
    uint64_t number = 0;      // of those that were finished
    bool is_awaited = false;  // by a sync point
    // Among several hosts: stopped where other files go first now.
    Context context = {};
  };
  // Makes what Open took over durable and visible. kInterrupted: by the context, and what is not durable yet is for the
  // next round. REQUIRES: is_open()
  virtual Status Finish(const Round& round) = 0;
  // All is durable, and no round comes any more.
  virtual void Stop() = 0;
};

}  // namespace cairnfs::fs
