#include "meta/look_ahead.h"

namespace cairnfs::meta {

Result<Attr> Namespace::Unlink(const Context& context, InodeId parent, std::string_view name) {
  CAIRNFS_RETURN_IF_ERROR(ValidateName(name));
  return RetryOnConflict(context, "unlink", PaceOf(options_), [&](int attempt) -> Result<Attr> {
    // The records that this host saw last of a file are as good as a read of them: the compares tell.
    std::optional<Hints::SeenEntry> seen;
    if (hints_ && attempt == 0) seen = hints_->TakeEntry(DentryKey(parent, name));
    if (seen) {
      CAIRNFS_RETURN_IF_ERROR(CommitRemoval(context, parent, name, seen->entry));
      seen->attr.nlink = seen->entry.inode.record.nlink;
      seen->attr.ctime = std::max(seen->attr.ctime, seen->entry.inode.record.ctime);
      return std::move(seen->attr);
    }
    LookAhead ahead(store_);
    kv::KvStore& store = LookAt(context, ahead, {{parent, name}});
    CAIRNFS_ASSIGN_OR_RETURN(auto entry, LoadEntry(context, store, parent, name));
    if (IsDirectory(entry)) return MakeError(ErrorCode::kIsDirectory, Describe(parent, name) + " is a directory");
    CAIRNFS_RETURN_IF_ERROR(CommitRemoval(context, parent, name, entry));
    return LoadAttrOrBasics(context, store, entry.id(), entry.inode.record);
  });
}

// Takes the name away; that of a directory only if it is empty. On return the entry's inode is as the commit left it.
Status Namespace::CommitRemoval(const Context& context, InodeId parent, std::string_view name, Entry& entry) {
  DirectoryTimesLock lock(directory_times_stripes_, options_, parent);
  const Timestamp now = TimeFor(parent);
  kv::Transaction transaction;
  transaction.IfRevision(DentryKey(parent, name), entry.dentry.revision)
      .IfRevision(InodeKey(entry.id()), entry.inode.revision)
      .Delete(DentryKey(parent, name));
  if (IsDirectory(entry)) AddDirectoryEmptyCompare(transaction, entry.id());
  DropLink(transaction, entry.id(), entry.inode.record, now);
  PutDirectoryTimes(transaction, parent, now);
  CAIRNFS_RETURN_IF_ERROR(store_.Commit(context, transaction));
  return {};
}

}  // namespace cairnfs::meta
