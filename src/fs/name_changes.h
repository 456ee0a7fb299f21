// NameChanges: a new name becomes durable after the bytes of its file (docs/architecture.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fs/services.h"

namespace cairnfs::fs {

class NameChanges {
 public:
  explicit NameChanges(const Services& services) : at_(services) {}
  virtual ~NameChanges() = default;

  // Where the rename is to seal the directory that it moves, has that done with it, and `done` told; false: it is not.
  bool SealsInstead(const meta::RenameParams& params, const meta::Attr& moved, const Caller& caller,
                    const Done<void>& done);
  // Names::WhenAdmitted.
  virtual void WhenAdmitted(NameChange change, const Caller& caller, Done<void> go) = 0;
  virtual void Rename(const meta::RenameParams& params, const Caller& caller, Done<void> done) = 0;
  // Maintenance::SyncNames.
  virtual void SyncNames(Done<void> done) = 0;

  void NoteRemoved(const meta::Attr& attr);  // a name of the inode was, which has these attributes since

 protected:
  // Notes that a commit was refused, why, and because of which files, for who asks later.
  virtual void Refuse(const meta::RenameParams& params, const Caller& caller, const Error& why) = 0;
  const Services& at() const { return at_; }
  // A name that gets long takes room for metadata, as a new one does. Short names can be given on a full disk too, and
  // such as are no longer than before always.
  static NameChange ChangeOf(const meta::RenameParams& params);
  Result<meta::RenameResult> Commit(const Context& context, const meta::RenameParams& params);
  // What the rename is of, with its marks where the store is remote.
  Result<meta::Attr> LookUpSource(const Context& context, const meta::RenameParams& params);
  // The error of a write of the file that failed and that nobody was told; a disk that fails will take neither the
  // bytes nor the name. Whatever round takes the new name of the file takes every byte written before it.
  Status PrepareForNewName(InodeId id);
  // A sync point whose caller may give up; kUnavailable when it took too long. `sources`: as SyncRounds::Request.
  void Sync(const Caller& caller, SyncRounds::Scope scope, Done<void> done, SyncRounds::Sources sources = {});

 private:
  Result<meta::RenameResult> RenameGoing(const Context& context, meta::RenameParams params);
  bool LacksPolicy(const Context& context, InodeId directory);
  Error TookTooLong() const;  // the sync point; what it waits for
  struct Sealing {
    meta::RenameParams params;  // with `expected_from`: the directory
    Caller caller;
    Clock::time_point until;  // writers are waited for
    Done<void> refuse;        // calls `done`; a commit is noted as refused
    Done<void> done;
  };
  static InodeId DirectoryOf(const Sealing& sealing) { return *sealing.params.expected_from; }
  Result<bool> WantsSeal(const meta::RenameParams& params, const meta::Attr& moved, const Context& context);
  void SealOnceClosed(const Sealing& sealing);
  void LookAgain(const Sealing& sealing, const std::vector<std::string>& writers);
  void MakeDurableAndSeal(const Sealing& sealing);
  void MarkAndSeal(const Sealing& sealing);

  const Services at_;
};

class LocalNameChanges final : public NameChanges {
 public:
  explicit LocalNameChanges(const Services& services) : NameChanges(services) {}

  void WhenAdmitted(NameChange change, const Caller& caller, Done<void> go) override {
    at().room.WhenAdmitted(change, caller.uid, std::move(go));
  }
  void Rename(const meta::RenameParams& params, const Caller& caller, Done<void> done) override;
  void SyncNames(Done<void> done) override { at().rounds.Request(std::move(done), SyncRounds::Scope::kNames); }

 private:
  using Files = std::vector<InodeId>;
  Status PrepareForNewNames(const Files& files);
  // Whether bytes of the files, or their recipes, that are still on their way to the disk may find no room there.
  bool MayFindNoRoom(const Files& files);
  void RenameAdmitted(const meta::RenameParams& params, const Caller& caller, Done<void> done);
  void RenameFile(const meta::RenameParams& params, const Files& files, const Caller& caller, Done<void> done);
  void RenameWhenAdmitted(const meta::RenameParams& params, const Files& files, Done<void> done);
  void RenameFileDurably(const meta::RenameParams& params, const Files& files, const Caller& caller, Done<void> done);
  void RenameDirectory(meta::RenameParams params, const Caller& caller, Done<void> done);
  // Causes for the files that did not become durable with the others, or have lost bytes.
  std::vector<meta::RefusalCause> CausesOf(const meta::RenameParams& params);
  // For the log, the status, and who asks for the last one. Returns the causes in one line.
  std::string NoteRefused(const meta::RenameParams& params, const Caller& caller,
                          std::vector<meta::RefusalCause> causes);
  // kIo: some of what is renamed has lost bytes; noted.
  Status CheckNoneLost(const meta::RenameParams& params, const Caller& caller);
  void Refuse(const meta::RenameParams& params, const Caller& caller, const Error& why) override;
  Status Finish(const meta::RenameParams& params, bool replaced, const Status& durable);
};

}  // namespace cairnfs::fs
