#include "meta/access.h"

#include <chrono>

#include "meta/quota_records.h"

namespace cairnfs::meta {
namespace {

constexpr uint64_t kDirectorySize = 4096;
constexpr int kAttemptsWithoutWait = 8;
constexpr int kRemoteAttemptsWithoutWait = 1;

template <typename Record>
Result<std::optional<Versioned<Record>>> LoadRecord(const Context& context, kv::KvStore& store,
                                                    const std::string& key) {
  CAIRNFS_ASSIGN_OR_RETURN(auto entry, store.Get(context, key));
  if (!entry) return std::optional<Versioned<Record>>();
  CAIRNFS_ASSIGN_OR_RETURN(auto record, Record::Decode(entry->value));
  return std::optional(Versioned<Record>{std::move(record), entry->revision});
}

}  // namespace

std::string Describe(InodeId inode) { return "inode " + std::to_string(inode.value); }

std::string Describe(InodeId parent, std::string_view name) {
  return "'" + std::string(name) + "' in directory " + std::to_string(parent.value);
}

Status ValidateName(std::string_view name) {
  if (name.size() > kNameBytesMax) {
    return MakeError(ErrorCode::kNameTooLong, "a name has at most " + std::to_string(kNameBytesMax) + " bytes, not " +
                                                  std::to_string(name.size()));
  }
  if (name.empty() || name == "." || name == ".." || name.find('/') != name.npos || name.find('\0') != name.npos) {
    return MakeError(ErrorCode::kInvalidArgument, "'" + std::string(name) + "' can be the name of no entry");
  }
  return {};
}

Status ValidateXattrName(std::string_view name, const NamespaceOptions& options) {
  if (!name.empty() && name.size() <= options.xattr_name_bytes_max) return {};
  return MakeError(ErrorCode::kRange, "the name of an extended attribute has 1 to " +
                                          std::to_string(options.xattr_name_bytes_max) + " bytes");
}

Error NoXattr(InodeId inode, std::string_view name) {
  return MakeError(ErrorCode::kNoData, Describe(inode) + " has no extended attribute '" + std::string(name) + "'");
}

Result<std::optional<Versioned<DentryRecord>>> FindDentry(const Context& context, kv::KvStore& store, InodeId parent,
                                                          std::string_view name) {
  auto found = LoadRecord<DentryRecord>(context, store, DentryKey(parent, name));
  if (!found.ok()) return found.error().WithContext(Describe(parent, name));
  return found;
}

Result<Versioned<InodeRecord>> LoadInode(const Context& context, kv::KvStore& store, InodeId inode) {
  auto found = LoadRecord<InodeRecord>(context, store, InodeKey(inode));
  if (!found.ok()) return found.error().WithContext(Describe(inode));
  if (!*found) return MakeError(ErrorCode::kNotFound, "there is no " + Describe(inode));
  return std::move(**found);
}

Result<Versioned<InodeRecord>> LoadLiveDirectory(const Context& context, kv::KvStore& store, InodeId inode) {
  CAIRNFS_ASSIGN_OR_RETURN(auto directory, LoadInode(context, store, inode));
  if (!IsDirectory(directory.record)) {
    return MakeError(ErrorCode::kNotDirectory, Describe(inode) + " is not a directory");
  }
  if (directory.record.nlink == 0) {
    return MakeError(ErrorCode::kNotFound, "directory " + std::to_string(inode.value) + " was removed");
  }
  return directory;
}

Result<std::optional<Entry>> FindEntry(const Context& context, kv::KvStore& store, InodeId parent,
                                       std::string_view name) {
  std::optional<uint64_t> revision_without_inode;
  for (;;) {
    CAIRNFS_ASSIGN_OR_RETURN(auto dentry, FindDentry(context, store, parent, name));
    if (!dentry) return std::optional<Entry>();
    auto inode = LoadInode(context, store, dentry->record.inode);
    if (inode.ok()) return std::optional(Entry{*dentry, std::move(*inode)});
    if (inode.error().code != ErrorCode::kNotFound) return inode.error();
    // Perhaps the name was removed, and its inode forgotten, between the two reads. Then the name has changed.
    if (revision_without_inode == dentry->revision) {
      return MakeError(ErrorCode::kCorrupt, Describe(parent, name) + " leads to " + Describe(dentry->record.inode) +
                                                ", which does not exist");
    }
    revision_without_inode = dentry->revision;
  }
}

Result<Entry> LoadEntry(const Context& context, kv::KvStore& store, InodeId parent, std::string_view name) {
  CAIRNFS_ASSIGN_OR_RETURN(auto entry, FindEntry(context, store, parent, name));
  if (entry) return std::move(*entry);
  CAIRNFS_RETURN_IF_ERROR(LoadLiveDirectory(context, store, parent));
  return MakeError(ErrorCode::kNotFound, "there is no " + Describe(parent, name));
}

Attr AttrOf(InodeId inode, const InodeRecord& record) {
  Attr attr;
  attr.inode = inode;
  attr.mode = record.mode;
  attr.uid = record.uid;
  attr.gid = record.gid;
  attr.nlink = record.nlink;
  attr.seal = record.seal;
  attr.rdev = record.rdev;
  attr.size = IsDirectory(record) ? kDirectorySize : record.symlink_target.size();
  attr.atime = record.atime;
  attr.mtime = record.mtime;
  attr.ctime = record.ctime;
  attr.quota = record.quota;
  return attr;
}

Result<Attr> LoadAttr(const Context& context, kv::KvStore& store, InodeId inode, const InodeRecord& record) {
  Attr attr = AttrOf(inode, record);
  if (IsRegular(record)) {
    auto file = LoadRecord<FileRecord>(context, store, FileKey(inode));
    if (!file.ok()) return file.error().WithContext(Describe(inode));
    if (*file) {
      const FileRecord& content = (*file)->record;
      attr.content_revision = (*file)->revision;
      attr.size = content.size;
      attr.allocated_bytes = content.allocated_bytes;
      attr.mtime = content.mtime;
      attr.ctime = std::max(attr.ctime, content.ctime);
    }
  } else if (IsDirectory(record)) {
    auto times = LoadRecord<DirectoryTimes>(context, store, DirectoryTimesKey(inode));
    if (!times.ok()) return times.error().WithContext(Describe(inode));
    if (*times) {
      attr.mtime = std::max(attr.mtime, (*times)->record.mtime);
      attr.ctime = std::max(attr.ctime, (*times)->record.ctime);
    }
  }
  return attr;
}

Result<Namespace::MarkedFile> DecodeMark(const kv::KvEntry& entry) {
  auto key = DecodeMarkKey(entry.key);
  if (!key) return MakeError(ErrorCode::kCorrupt, "the key of a mark of an unpublished file does not decode");
  auto mark = UnpublishedMark::Decode(entry.value);
  if (!mark.ok()) return mark.error().WithContext(Describe(key->inode));
  return Namespace::MarkedFile{key->inode, {entry.key, std::move(key->node), *std::move(mark), entry.revision}};
}

Attr LoadAttrOrBasics(const Context& context, kv::KvStore& store, InodeId inode, const InodeRecord& record) {
  auto attr = LoadAttr(context, store, inode, record);
  return attr.ok() ? *attr : AttrOf(inode, record);
}

Result<bool> IsEmptyDirectory(const Context& context, kv::KvStore& store, InodeId directory) {
  const std::string prefix = DentryPrefix(directory);
  CAIRNFS_ASSIGN_OR_RETURN(auto range, store.Range(context, prefix, kv::PrefixEnd(prefix), 1));
  return range.entries.empty();
}

Status MoveFileUnderQuota(const Context& context, kv::KvStore& store, const NamespaceOptions& options,
                          const FileUnderQuota& moved, InodeRecord& inode, kv::Transaction& transaction) {
  const auto& [id, quota] = moved;
  const bool counts = inode.quota.value != 0 || quota.value != 0;
  if (!IsRegular(inode) || !counts) return {};
  inode.quota = quota;
  if (!options.remote) return {};
  CAIRNFS_ASSIGN_OR_RETURN(const auto entry, store.Get(context, FileKey(id)));
  FileRecord record;  // of one that was never published, so that each host that has it open finds another record
  record.mtime = inode.mtime;
  record.ctime = inode.ctime;
  if (entry) {
    CAIRNFS_ASSIGN_OR_RETURN(record, FileRecord::Decode(entry->value));
  }
  record.quota = quota;
  transaction.IfRevision(FileKey(id), entry ? entry->revision : 0).Put(FileKey(id), record.Encode());
  auto usage = UsageOf(id, record);
  transaction.writes.push_back(usage ? *std::move(usage) : kv::KvWrite{UsageKey(id), std::nullopt});
  return {};
}

Status CheckSameQuota(const Context& context, kv::KvStore& store, InodeId one, InodeId other) {
  if (one == other) return {};
  for (const InodeId quota : {one, other}) {
    if (quota.value == 0) continue;
    CAIRNFS_ASSIGN_OR_RETURN(const auto found, store.Get(context, QuotaKey(quota)));
    if (!found) continue;
    return MakeError(ErrorCode::kOtherQuota, "it would go from one quota into another, or under none: copy it there");
  }
  return {};
}

void AddDirectoryEmptyCompare(kv::Transaction& transaction, InodeId directory) {
  const std::string prefix = DentryPrefix(directory);
  transaction.IfRangeEmpty(prefix, kv::PrefixEnd(prefix));
}

void PutDirectoryTimes(kv::Transaction& transaction, InodeId directory, Timestamp now) {
  transaction.Put(DirectoryTimesKey(directory), DirectoryTimes{now, now}.Encode());
}

void DropLink(kv::Transaction& transaction, InodeId inode, InodeRecord& record, Timestamp now) {
  if (record.nlink > 0) record.nlink--;
  record.ctime = now;
  // Nobody knows in which directories the other names are.
  if (record.nlink > 0 && !IsDirectory(record)) record.parent = InodeId{};
  transaction.Put(InodeKey(inode), record.Encode());
  if (record.nlink > 0) return;
  transaction.Put(OrphanKey(inode), "");
  // Whoever has it open counts it until it is closed (docs/decisions/quotas.md).
  if (record.quota.value != 0 && IsRegular(record)) transaction.Delete(UsageKey(inode));
}

void MoveToTrash(kv::Transaction& transaction, InodeId inode, InodeRecord& record, const TrashParams& params,
                 TrashRecord removed, Timestamp now) {
  constexpr int64_t kNanosecondsPerSecond = 1'000'000'000, kMillisecondsPerSecond = 1000;
  record.nlink = 0;
  record.ctime = now;
  removed.type = record.mode & S_IFMT;
  removed.owner = record.uid;
  removed.removed_by = params.removed_by;
  removed.by_retention = params.by_retention;
  if (!params.name.empty()) removed.name = params.name;
  removed.files = params.held.files;
  removed.bytes = params.held.bytes;
  removed.expires = now;
  removed.expires.seconds += params.keep.count() / kMillisecondsPerSecond;
  const int64_t at_ns = std::max<int64_t>(now.seconds, 0) * kNanosecondsPerSecond + now.nanoseconds;
  if (record.quota.value != 0 && IsRegular(record)) transaction.Delete(UsageKey(inode));
  if (S_ISDIR(record.mode) && !params.whole) transaction.Delete(CommitKey(inode));  // what was committed has left it
  transaction.Put(InodeKey(inode), record.Encode())
      .Put(TrashKey({std::max<uint64_t>(static_cast<uint64_t>(at_ns), 1), inode}), removed.Encode());
}

DirectoryTimesLock::DirectoryTimesLock(std::array<Mutex, kDirectoryTimesStripes>& stripes,
                                       const NamespaceOptions& options, InodeId first, InodeId second)
    : low_(nullptr), high_(nullptr) {
  if (options.remote) return;
  size_t low = first.value % stripes.size();
  size_t high = second.value % stripes.size();
  if (low > high) std::swap(low, high);
  low_ = &stripes[low];
  high_ = low == high ? nullptr : &stripes[high];
  low_->Lock();
  if (high_ != nullptr) high_->Lock();
}

DirectoryTimesLock::~DirectoryTimesLock() {
  if (high_ != nullptr) high_->Unlock();
  if (low_ != nullptr) low_->Unlock();
}

bool ConflictWaits::WaitAfter(const Context& context, int attempt) {
  const bool quick = pace_ == Pace::kMicroseconds;
  if (attempt < (quick ? kAttemptsWithoutWait : kRemoteAttemptsWithoutWait)) return !context.Expired();
  if (!retry_) {
    kv::RetryOptions options;
    options.wait_min = std::chrono::microseconds(quick ? 16 : 2'000);
    options.wait_max = 64 * options.wait_min;
    retry_.emplace(context, options);
  }
  return context.Sleep(retry_->NextWait());
}

}  // namespace cairnfs::meta
