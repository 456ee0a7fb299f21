// Publisher: how a round makes durable and visible what was changed before it. One host alone does it in one way
// (LocalPublisher), one of several in another (SharedPublisher). SyncRounds says when.
#pragma once

#include "fs/dirty_files.h"
#include "fs/filesystem.h"

namespace cairnfs::fs {

class Publisher {
 public:
  virtual ~Publisher() = default;

  // Any thread.

  // Begin and end of an operation that changes names, or files other than by a write: a round begins between two of
  // them, never within one.
  virtual void BeginOperation() = 0;
  virtual void EndOperation() = 0;
  // When a change of names may be made. Names that are not durable yet take memory.
  enum class Admission {
    kAtOnce,
    kWithRound,   // at once, and a round is asked for
    kAfterRound,  // a round has to end first
  };
  virtual Admission Admit(NameChange change) const = 0;
  // Whether a change that would have to wait may be made all the same, because rounds fail.
  virtual bool AdmitsWhileFailing(NameChange change) const = 0;
  virtual bool HasUnflushedNames() const = 0;
  // There is so little to do that the thread that asks for a round may run it.
  virtual bool MayRunOnCaller() const = 0;
  // Whether rounds that fail so have a disk that nobody outlives by waiting.
  virtual bool IsDiskFailure(const Error& error) const = 0;
  // A round was opened and is not finished.
  virtual bool is_open() const = 0;

  // The thread that runs the round. In this order, and Finish again where a round before is still open.

  // Finds out what became of transactions whose answers were lost. No round goes on before.
  virtual Status ResolveDoubt() = 0;
  // Takes over what was changed before the call.
  virtual void Open(DirtyFiles::Which which) = 0;
  struct Round {
    uint64_t number;  // of those that were finished
    bool is_awaited;  // by a sync point
  };
  // Makes what Open took over durable and visible. REQUIRES: is_open()
  virtual Status Finish(const Round& round) = 0;
  // All is durable, and no round comes any more.
  virtual void Stop() = 0;
};

}  // namespace cairnfs::fs
