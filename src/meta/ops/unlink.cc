#include "meta/look_ahead.h"

namespace cairnfs::meta {

Result<Attr> Namespace::Unlink(const Context& context, InodeId parent, std::string_view name,
                               const std::optional<TrashParams>& trash) {
  CAIRNFS_RETURN_IF_ERROR(ValidateName(name));
  return RetryOnConflict(context, "unlink", PaceOf(options_), [&](int attempt) -> Result<Attr> {
    // The records that this host saw last of a file are as good as a read of them: the compares tell.
    std::optional<Hints::SeenEntry> seen;
    if (hints_ && attempt == 0) seen = hints_->TakeEntry(DentryKey(parent, name));
    CAIRNFS_ASSIGN_OR_RETURN(const uint64_t seals, CheckUnsealed(context, attempt, {parent}));
    if (seen) {
      CAIRNFS_ASSIGN_OR_RETURN(seen->attr.in_trash, CommitRemoval(context, {parent, name, seen->entry, seals}, trash));
      seen->attr.nlink = seen->entry.inode.record.nlink;
      seen->attr.ctime = std::max(seen->attr.ctime, seen->entry.inode.record.ctime);
      return std::move(seen->attr);
    }
    LookAhead ahead(store_);
    kv::KvStore& store = LookAt(context, ahead, {{parent, name}});
    CAIRNFS_ASSIGN_OR_RETURN(auto entry, LoadEntry(context, store, parent, name));
    if (IsDirectory(entry)) return MakeError(ErrorCode::kIsDirectory, Describe(parent, name) + " is a directory");
    CAIRNFS_ASSIGN_OR_RETURN(const bool in_trash, CommitRemoval(context, {parent, name, entry, seals}, trash));
    Attr attr = LoadAttrOrBasics(context, store, entry.id(), entry.inode.record);
    attr.in_trash = in_trash;
    return attr;
  });
}

// Takes the name away; that of a directory only if it is empty, or goes to the trash with what is below it. On return
// the entry's inode is as the commit left it. Of a file with several names only the last one takes it to the trash.
Result<bool> Namespace::CommitRemoval(const Context& context, const Removal& removal,
                                      const std::optional<TrashParams>& trash) {
  Entry& entry = removal.entry;
  const bool in_trash = trash && entry.inode.record.nlink == 1;
  TrashRecord record{.parent = removal.parent, .name = std::string(removal.name)};
  if (in_trash) {
    CAIRNFS_ASSIGN_OR_RETURN(const auto directory, LoadInode(context, store_, removal.parent));
    record.parent_owner = directory.record.uid;
  }
  DirectoryTimesLock lock(directory_times_stripes_, options_, removal.parent);
  const Timestamp now = TimeFor(removal.parent);
  kv::Transaction transaction;
  transaction.IfRevision(DentryKey(removal.parent, removal.name), entry.dentry.revision)
      .IfRevision(InodeKey(entry.id()), entry.inode.revision)
      .IfRevision(SealsKey(), removal.seals_revision)
      .Delete(DentryKey(removal.parent, removal.name));
  if (IsDirectory(entry) && !(in_trash && trash->whole)) AddDirectoryEmptyCompare(transaction, entry.id());
  if (in_trash) {
    MoveToTrash(transaction, entry.id(), entry.inode.record, *trash, std::move(record), now);
  } else {
    DropLink(transaction, entry.id(), entry.inode.record, now);
  }
  PutDirectoryTimes(transaction, removal.parent, now);
  CAIRNFS_RETURN_IF_ERROR(store_.Commit(context, transaction));
  return in_trash;
}

}  // namespace cairnfs::meta
