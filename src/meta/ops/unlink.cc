#include "meta/look_ahead.h"

namespace cairnfs::meta {

Result<Attr> Namespace::Unlink(InodeId parent, std::string_view name) {
  CAIRNFS_RETURN_IF_ERROR(ValidateName(name));
  return RetryOnConflict("unlink", PaceOf(options_), [&](int) -> Result<Attr> {
    LookAhead ahead(store_);
    kv::KvStore& store = LookAt(ahead, {{parent, name}});
    CAIRNFS_ASSIGN_OR_RETURN(auto entry, LoadEntry(store, parent, name));
    if (IsDirectory(entry)) return MakeError(ErrorCode::kIsDirectory, Describe(parent, name) + " is a directory");
    InodeRecord& record = entry.inode.record;
    {
      DirectoryTimesLock lock(directory_times_stripes_, options_, parent);
      const Timestamp now = TimeFor(parent);
      kv::Transaction transaction;
      transaction.IfRevision(DentryKey(parent, name), entry.dentry.revision)
          .IfRevision(InodeKey(entry.id()), entry.inode.revision)
          .Delete(DentryKey(parent, name));
      DropLink(transaction, entry.id(), record, now);
      PutDirectoryTimes(transaction, parent, now);
      CAIRNFS_RETURN_IF_ERROR(store_.Commit(transaction));
    }
    return LoadAttrOrBasics(store, entry.id(), record);
  });
}

}  // namespace cairnfs::meta
