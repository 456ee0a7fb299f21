// NameChanges: a new name becomes durable after the bytes of its file (docs/architecture.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fs/metadata_room.h"
#include "fs/services.h"

namespace cairnfs::fs {

class NameChanges {
 public:
  explicit NameChanges(const Services& services) : at_(services) {}
  virtual ~NameChanges() = default;

  // Names::WhenAdmitted.
  virtual void WhenAdmitted(NameChange change, const Caller& caller, Done<void> go) = 0;
  virtual void Rename(const meta::RenameParams& params, const Caller& caller, Done<void> done) = 0;
  // Maintenance::SyncNames.
  virtual void SyncNames(Done<void> done) = 0;
  // Names::LastFailedCommit.
  virtual std::optional<CommitFailure> LastFailed(InodeId directory) const = 0;
  virtual std::vector<CommitFailure> Failures() const = 0;

  void NoteRemoved(const meta::Attr& attr);  // a name of the inode was, which has these attributes since

 protected:
  const Services& at() const { return at_; }
  // A name that gets long takes room for metadata, as a new one does. Short names can be given on a full disk too.
  static bool MakesName(const meta::RenameParams& params);
  Result<bool> Commit(const Context& context, const meta::RenameParams& params);  // whether it replaced something
  // The error of a write of the file that failed and that nobody was told; a disk that fails will take neither the
  // bytes nor the name. Whatever round takes the new name of the file takes every byte written before it.
  Status PrepareForNewName(InodeId id);
  // A sync point whose caller may give up; kUnavailable when it took too long.
  void Sync(const Caller& caller, SyncRounds::Scope scope, Done<void> done);

 private:
  Error TookTooLong() const;  // the sync point; what it waits for

  const Services at_;
};

class LocalNameChanges final : public NameChanges {
 public:
  struct Parts {  // all outlive it
    kv::LocalKvStore& kv;
    MetadataRoom& room;
  };
  LocalNameChanges(const Services& services, const Parts& parts) : NameChanges(services), local_(parts) {}

  void WhenAdmitted(NameChange change, const Caller& caller, Done<void> go) override;
  void Rename(const meta::RenameParams& params, const Caller& caller, Done<void> done) override;
  void SyncNames(Done<void> done) override { at().rounds.Request(std::move(done), SyncRounds::Scope::kNames); }
  std::optional<CommitFailure> LastFailed(InodeId) const override { return std::nullopt; }
  std::vector<CommitFailure> Failures() const override { return {}; }

 private:
  using Files = std::vector<InodeId>;
  Status PrepareForNewNames(const Files& files);
  // Whether bytes of the files, or their recipes, that are still on their way to the disk may find no room there.
  bool MayFindNoRoom(const Files& files);
  void RenameFile(const meta::RenameParams& params, const Files& files, const Caller& caller, Done<void> done);
  void RenameWhenAdmitted(const meta::RenameParams& params, const Files& files, Done<void> done);
  void RenameFileDurably(const meta::RenameParams& params, const Files& files, const Caller& caller, Done<void> done);
  void RenameDirectory(const meta::RenameParams& params, const Caller& caller, Done<void> done);
  Status Finish(const meta::RenameParams& params, bool replaced, const Status& durable);

  Status Admit(uint32_t uid) { return local_.room.Admit(uid, local_.kv.UnflushedBytes()); }

  const Parts local_;
};

}  // namespace cairnfs::fs
