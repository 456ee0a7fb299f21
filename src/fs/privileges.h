// Privileges: set-id bits and file capabilities, which a change of a file's content takes away, and how the kernel is
// kept from executing a file by bits that are gone (docs/decisions/set-id.md).
#pragma once

#include <atomic>

#include "fs/filesystem.h"
#include "fs/inode.h"
#include "fs/sync_rounds.h"

namespace cairnfs::fs {

class Privileges {
 public:
  // All outlive it.
  Privileges(meta::Namespace& names, InodeTable& table, SyncRounds& rounds)
      : names_(names), table_(table), rounds_(rounds) {}

  // All functions may be called from any thread at once.
  // The set-id bits that a write of the caller takes away.
  static uint32_t SetIdThatGoes(const meta::Attr& attr, const Caller& caller);
  // Takes away what a change of the content by the caller ends: file capabilities, whoever it is, and set-id bits.
  // Before the change: one that could not be followed by this is refused. Asks the store where MayHave.
  Status Kill(const InodePtr& inode, Kills what, const Caller& caller);
  Status Kill(InodeId id, Kills what, const Caller& caller);
  static bool MayHave(const InodePtr& inode, Kills what);
  // Whether changes that are not published take away the capabilities, or the set-id bits that these attributes tell.
  static bool WillLoseCapability(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  static bool WillLoseSetId(const InodePtr& inode, const meta::Attr& attr) REQUIRES_LOCK(inode->mutex);
  void NoteSeen(const meta::Attr& attr);  // as the namespace has it
  void NoteGiven(InodeId id);             // after capabilities were set
  void NoteModeSet(InodeId id);           // after a chmod
  // Before an answer to the kernel that tells these attributes. False: it is to ask anew each time.
  bool NoteReply(const meta::Attr& attr);
  // The kernel may believe in set-id bits that the file has no more.
  Result<bool> MayBelieveOldSetId(const Context& context, const InodePtr& inode);
  Status CheckMayExecute(InodeId id, const Caller& caller);  // errors as of OpenFiles::Open
  void NoteNameRemoved(const meta::Attr& attr);              // before the answer goes out

 private:
  Status KillSetId(const InodePtr& inode, const Caller& caller);
  Status KillCapability(const Context& context, const InodePtr& inode);

  meta::Namespace& names_;
  InodeTable& table_;
  SyncRounds& rounds_;
  std::atomic<bool> any_set_id_replied_{false};  // some answer to the kernel told set-id bits of a file
};

}  // namespace cairnfs::fs
