#include "base/clock.h"
#include "cairnfs/cairnfs.h"
#include "meta/look_ahead.h"
#include "meta/policy_records.h"

namespace cairnfs::meta {

Result<Attr> Namespace::SetAttr(const Context& context, InodeId inode, const AttrChanges& changes) {
  return RetryOnConflict(context, "setattr", PaceOf(options_), [&](int attempt) -> Result<Attr> {
    LookAhead ahead(store_);
    kv::KvStore& store = LookAt(context, ahead, inode);
    CAIRNFS_ASSIGN_OR_RETURN(auto loaded, LoadInode(context, store, inode));
    InodeRecord& record = loaded.record;
    if (changes.mtime && IsRegular(record)) {
      return MakeError(ErrorCode::kInvalidArgument, "the content of " + Describe(inode) + " holds its mtime");
    }
    CAIRNFS_ASSIGN_OR_RETURN(const uint64_t seals, CheckUnsealed(context, attempt, {inode}));
    kv::Transaction transaction;
    transaction.IfRevision(InodeKey(inode), loaded.revision).IfRevision(SealsKey(), seals);
    if (IsDirectory(record) && (changes.mtime || changes.ctime)) {
      // The later of the I and the T record counts, so a time in the past needs the T record out of the way.
      CAIRNFS_ASSIGN_OR_RETURN(auto times, store.Get(context, DirectoryTimesKey(inode)));
      CAIRNFS_ASSIGN_OR_RETURN(const Attr attr, LoadAttr(context, store, inode, record));
      record.mtime = attr.mtime;
      transaction.IfRevision(DirectoryTimesKey(inode), times ? times->revision : 0).Delete(DirectoryTimesKey(inode));
    }
    // A policy of retention is one user's word about what may go. The next owner has not given it.
    if (changes.uid && *changes.uid != record.uid && IsDirectory(record)) {
      transaction.Delete(XattrKey(inode, CAIRNFS_XATTR_RETAIN));
      CAIRNFS_RETURN_IF_ERROR(EndPolicy(context, store, inode, transaction));
    }
    if (changes.mode) record.mode = (record.mode & S_IFMT) | (*changes.mode & 07777);
    record.mode &= ~(changes.mode_cleared & 07777);
    if (changes.uid) record.uid = *changes.uid;
    if (changes.gid) record.gid = *changes.gid;
    if (changes.atime) record.atime = *changes.atime;
    if (changes.mtime) record.mtime = *changes.mtime;
    record.ctime = changes.ctime ? *changes.ctime : Clock::WallTime();
    transaction.Put(InodeKey(inode), record.Encode());
    CAIRNFS_ASSIGN_OR_RETURN(const uint64_t revision, store_.Commit(context, transaction));
    Attr attr = LoadAttrOrBasics(context, store, inode, record);
    if (options_.remote) attr.inode_revision = revision;
    return attr;
  });
}

}  // namespace cairnfs::meta
