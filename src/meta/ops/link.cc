#include "meta/look_ahead.h"

namespace cairnfs::meta {

Result<Attr> Namespace::Link(const Context& context, InodeId inode, InodeId new_parent, std::string_view new_name,
                             std::optional<uint32_t> uid) {
  CAIRNFS_RETURN_IF_ERROR(ValidateName(new_name));
  return RetryOnConflict(context, "link", PaceOf(options_), [&](int attempt) -> Result<Attr> {
    LookAhead ahead(store_);
    if (options_.remote) ahead.WantInode(inode, WithMarks::kNo);
    kv::KvStore& store = LookAt(context, ahead, {{new_parent, new_name}});
    CAIRNFS_ASSIGN_OR_RETURN(auto directory, LoadLiveDirectory(context, store, new_parent));
    if (attempt > 0) {
      CAIRNFS_ASSIGN_OR_RETURN(auto taken, FindDentry(context, store, new_parent, new_name));
      if (taken) return MakeError(ErrorCode::kAlreadyExists, "there is a " + Describe(new_parent, new_name));
    }
    CAIRNFS_ASSIGN_OR_RETURN(auto target, LoadInode(context, store, inode));
    InodeRecord& record = target.record;
    if (IsDirectory(record)) {
      return MakeError(ErrorCode::kPermission, Describe(inode) + " is a directory and can have one link only");
    }
    if (record.nlink == 0) return MakeError(ErrorCode::kNotFound, Describe(inode) + " was removed");
    if (record.nlink >= options_.links_max) {
      return MakeError(ErrorCode::kTooManyLinks,
                       Describe(inode) + " has " + std::to_string(record.nlink) + " links, as many as there may be");
    }
    if (IsRegular(record)) {
      CAIRNFS_RETURN_IF_ERROR(CheckSameQuota(context, store, record.quota, directory.record.quota));
    }
    CAIRNFS_ASSIGN_OR_RETURN(const uint64_t seals, CheckUnsealed(context, attempt, {new_parent, inode}));
    DirectoryTimesLock lock(directory_times_stripes_, options_, new_parent);
    const Timestamp now = TimeFor(new_parent);
    record.nlink++;
    record.parent = new_parent;
    record.ctime = now;
    kv::Transaction transaction;
    transaction.makes_names_for = uid;
    transaction.IfRevision(InodeKey(new_parent), directory.revision)
        .IfRevision(SealsKey(), seals)
        .IfRevision(InodeKey(inode), target.revision)
        .IfAbsent(DentryKey(new_parent, new_name))
        .Put(InodeKey(inode), record.Encode())
        .Put(DentryKey(new_parent, new_name), DentryRecord{inode, record.mode & S_IFMT}.Encode());
    PutDirectoryTimes(transaction, new_parent, now);
    CAIRNFS_RETURN_IF_ERROR(store_.Commit(context, transaction));
    return LoadAttrOrBasics(context, store, inode, record);
  });
}

}  // namespace cairnfs::meta
