#include "meta/look_ahead.h"

namespace cairnfs::meta {
namespace {

// As a rule a conflict is about the directory. After this many in a row the number may be another inode's: a backup was
// restored, and numbers that this host had reserved were given to another host.
constexpr int kConflictsToDoubtNumber = 3;

Status Validate(const CreateParams& params) {
  const uint32_t type = params.mode & S_IFMT;
  switch (type) {
    case S_IFREG:
    case S_IFDIR:
    case S_IFCHR:
    case S_IFBLK:
    case S_IFIFO:
    case S_IFSOCK:
      if (params.symlink_target.empty()) return {};
      return MakeError(ErrorCode::kInvalidArgument, "only a symbolic link has a target");
    case S_IFLNK: break;
    default: return MakeError(ErrorCode::kInvalidArgument, "the mode names no type of file");
  }
  if (params.symlink_target.empty()) return MakeError(ErrorCode::kNotFound, "a symbolic link needs a target");
  if (params.symlink_target.size() > kSymlinkTargetBytesMax) {
    return MakeError(ErrorCode::kNameTooLong,
                     "a symbolic link's target has at most " + std::to_string(kSymlinkTargetBytesMax) + " bytes");
  }
  return {};
}

InodeRecord MakeInode(const CreateParams& params, InodeId parent_id, const InodeRecord& parent) {
  InodeRecord record;
  record.mode = params.mode & (S_IFMT | 07777);
  record.uid = params.uid;
  record.gid = params.gid;
  record.nlink = params.without_name ? 0 : 1;
  if (S_ISCHR(record.mode) || S_ISBLK(record.mode)) record.rdev = params.rdev;
  record.parent = parent_id;
  if (S_ISDIR(record.mode) || S_ISREG(record.mode)) record.quota = parent.quota;
  if (S_ISLNK(record.mode)) record.symlink_target = params.symlink_target;
  if ((parent.mode & S_ISGID) != 0) {
    record.gid = parent.gid;
    if (S_ISDIR(record.mode)) record.mode |= S_ISGID;
  }
  if (params.owner) {
    record.uid = params.owner->uid;
    record.gid = params.owner->gid;
  }
  return record;
}

}  // namespace

Result<Attr> Namespace::Create(const Context& context, InodeId parent, std::string_view name,
                               const CreateParams& params, const std::function<void(InodeId)>& numbered) {
  CAIRNFS_RETURN_IF_ERROR(ValidateName(name));
  CAIRNFS_RETURN_IF_ERROR(Validate(params));
  std::optional<InodeId> inode;
  return RetryOnConflict(context, "create", PaceOf(options_), [&](int attempt) -> Result<Attr> {
    LookAhead ahead(store_);
    // The record that this host saw last of the directory is as good as a read of it: the compare tells.
    std::optional<Versioned<InodeRecord>> seen;
    if (hints_ && attempt == 0) seen = hints_->DirectoryOf(parent);
    kv::KvStore& store = seen ? store_ : LookAt(context, ahead, {{parent, name}});
    Versioned<InodeRecord> directory;
    if (seen && seen->record.nlink > 0) {
      directory = std::move(*seen);
    } else {
      CAIRNFS_ASSIGN_OR_RETURN(directory, LoadLiveDirectory(context, store, parent));
    }
    if (params.may_fall_under) CAIRNFS_RETURN_IF_ERROR(params.may_fall_under(directory.record.quota));
    // In the first attempt the compare alone tells whether the name is taken.
    if (attempt > 0 && !params.without_name) {
      CAIRNFS_ASSIGN_OR_RETURN(auto taken, FindDentry(context, store, parent, name));
      if (taken) return MakeError(ErrorCode::kAlreadyExists, "there is a " + Describe(parent, name));
    }
    if (inode && options_.remote && attempt >= kConflictsToDoubtNumber) {
      CAIRNFS_ASSIGN_OR_RETURN(auto other, store_.Get(context, InodeKey(*inode)));
      if (other) {
        GiveUpRangeOf(*inode);
        inode.reset();
      }
    }
    CAIRNFS_ASSIGN_OR_RETURN(const uint64_t seals, CheckUnsealed(context, attempt, {parent}));
    if (!inode) {
      CAIRNFS_ASSIGN_OR_RETURN(inode, AllocateInode(context));
      if (numbered) numbered(*inode);
    }
    InodeRecord record = MakeInode(params, parent, directory.record);
    DirectoryTimesLock lock(directory_times_stripes_, options_, parent);
    const Timestamp now = TimeFor(parent);
    record.atime = record.mtime = record.ctime = now;
    kv::Transaction transaction;
    transaction.makes_names_for = params.uid;
    transaction.IfRevision(InodeKey(parent), directory.revision)
        .IfRevision(SealsKey(), seals)
        .Put(InodeKey(*inode), record.Encode());
    if (params.without_name) {
      transaction.Put(OrphanKey(*inode), "");
    } else {
      transaction.IfAbsent(DentryKey(parent, name))
          .Put(DentryKey(parent, name), DentryRecord{*inode, record.mode & S_IFMT}.Encode());
      PutDirectoryTimes(transaction, parent, now);
    }
    // Shows that the inode is new, and has no home yet. Otherwise the store would have to be asked which delegation
    // covers its records.
    if (options_.remote) transaction.IfAbsent(InodeKey(*inode));
    if (params.also) params.also(transaction, *inode);
    CAIRNFS_ASSIGN_OR_RETURN(const uint64_t revision, store_.Commit(context, transaction));
    const std::string key = DentryKey(parent, name);
    if (hints_ && IsDirectory(record)) {
      hints_->NoteName(key, *inode);
      hints_->NoteDirectory(*inode, {record, revision});
    } else if (hints_ && !params.without_name) {
      const DentryRecord dentry{*inode, record.mode & S_IFMT};
      hints_->NoteEntry(key, {{dentry, revision}, {record, revision}}, AttrOf(*inode, record));
    }
    Attr attr = AttrOf(*inode, record);
    if (options_.remote) attr.inode_revision = revision;
    return attr;
  });
}

}  // namespace cairnfs::meta
