// The trash: what was removed and can be restored. docs/decisions/trash.md.
//
// Emptying first takes an entry out of reach, in one transaction (Doom), and only then removes what is below it. From
// then on nothing can bring it back, so whoever goes on, after a crash or on another host, removes nothing that was
// restored. A doomed directory has no link, so nothing is made right in it; each step takes a name out of one, by a
// transaction that compares that name. What was moved elsewhere meanwhile is therefore left alone.
#include <cassert>

#include "base/coding.h"
#include "base/failpoint.h"
#include "meta/look_ahead.h"
#include "meta/quota_records.h"

namespace cairnfs::meta {
namespace {

Failpoint doomed("meta.trash_doomed", Failpoint::Kind::kKill);
Failpoint cleared("meta.trash_cleared", Failpoint::Kind::kKill);
Failpoint restored("meta.trash_restored", Failpoint::Kind::kKill);

// Each takes two compares, and four writes where it counts for a quota; etcd takes 127 of either in one request.
constexpr size_t kClearedAtOnce = 24;

// Of one inode alone: others can be removed yet.
bool IsOfRecord(const Error& error) { return error.code == ErrorCode::kCorrupt || error.code == ErrorCode::kNotFound; }

Result<TrashEntry> Decode(const kv::KvEntry& entry) {
  const auto parts = DecodeTrashKey(entry.key);
  if (!parts) return MakeError(ErrorCode::kCorrupt, "the key of an entry of the trash does not decode");
  auto record = TrashRecord::Decode(entry.value);
  if (!record.ok()) return record.error().WithContext(Describe(parts->inode));
  return TrashEntry{entry.key, *parts, *std::move(record), entry.revision};
}

std::string DoomedPrefix() { return Encoder().Text(TrashPrefix()).BigEndianU64(0).Take(); }

// A directory comes back to where its quota is, or to under none once that was taken off; an empty one anywhere. What
// has a quota of its own lies under none.
Status CheckQuota(const Context& context, kv::KvStore& store, InodeId id, InodeRecord& inode,
                  const InodeRecord& directory, kv::Transaction& transaction) {
  const InodeId lay_under = inode.quota == id ? InodeId{} : inode.quota;
  if (lay_under == directory.quota) return {};
  CAIRNFS_ASSIGN_OR_RETURN(const bool is_empty, IsEmptyDirectory(context, store, id));
  bool may = is_empty && lay_under == inode.quota;
  if (may) {
    AddDirectoryEmptyCompare(transaction, id);
  } else if (directory.quota.value == 0) {
    CAIRNFS_ASSIGN_OR_RETURN(const auto quota, store.Get(context, QuotaKey(lay_under)));
    may = !quota;
    if (may) transaction.IfAbsent(QuotaKey(lay_under));
  }
  if (!may) {
    return MakeError(ErrorCode::kOtherQuota,
                     "what it holds lay under another quota, or under none: restore it to where that is the same, and "
                     "copy it from there");
  }
  inode.quota = directory.quota;
  return {};
}

// What is restored falls under the quota of its directory from then on, and a file counts for it.
Status MoveUnderQuota(const Context& context, kv::KvStore& store, const NamespaceOptions& options, InodeId id,
                      InodeRecord& inode, const InodeRecord& directory, kv::Transaction& transaction) {
  if (IsDirectory(inode)) return CheckQuota(context, store, id, inode, directory, transaction);
  return MoveFileUnderQuota(context, store, options, {id, directory.quota}, inode, transaction);
}

// Adds what a directory and its attributes are once it has a name again.
void BuildRestore(const RestoreParams& params, const Versioned<InodeRecord>& directory, Versioned<InodeRecord>& inode,
                  Timestamp now, kv::Transaction& transaction) {
  const InodeId id = params.entry.parts.inode;
  transaction.makes_names_for = params.uid;
  transaction.IfRevision(params.entry.key, params.entry.revision)
      .IfRevision(InodeKey(id), inode.revision)
      .IfRevision(InodeKey(params.to_parent), directory.revision)
      .IfAbsent(DentryKey(params.to_parent, params.to_name))
      .Delete(params.entry.key)
      .Put(DentryKey(params.to_parent, params.to_name), DentryRecord{id, inode.record.mode & S_IFMT}.Encode());
  inode.record.nlink = 1;
  inode.record.ctime = now;
  transaction.Put(InodeKey(id), inode.record.Encode());
  for (const auto& [name, value] : params.attributes) transaction.Put(XattrKey(id, name), value);
  PutDirectoryTimes(transaction, params.to_parent, now);
}

}  // namespace

Result<std::vector<TrashEntry>> Namespace::ListTrash(const Context& context, std::string_view after, size_t limit,
                                                     size_t* damaged) {
  std::string begin = after.empty() ? TrashKey({1, InodeId{}}) : std::string(after) + '\0';
  std::vector<TrashEntry> entries;
  for (bool is_last = false; !is_last && (limit == 0 || entries.size() < limit);) {
    const size_t wanted = limit == 0 ? 0 : limit - entries.size();
    CAIRNFS_ASSIGN_OR_RETURN(const auto range, store_.Range(context, begin, kv::PrefixEnd(TrashPrefix()), wanted));
    is_last = !range.more;
    if (!range.entries.empty()) begin = range.entries.back().key + '\0';
    for (const kv::KvEntry& entry : range.entries) {
      auto decoded = Decode(entry);
      if (!decoded.ok() && damaged != nullptr) (*damaged)++;
      if (decoded.ok()) entries.push_back(*std::move(decoded));
    }
  }
  return entries;
}

Result<uint64_t> Namespace::SumAllocated(const Context& context, const std::vector<InodeId>& files,
                                         size_t records_per_read) {
  std::vector<std::string> keys;
  for (const InodeId file : files) keys.push_back(FileKey(file));
  uint64_t bytes = 0;
  CAIRNFS_RETURN_IF_ERROR(
      kv::ReadKeys(context, store_, keys, records_per_read, [&](size_t, const kv::KvEntry* entry) -> Status {
        if (entry == nullptr) return {};  // never published
        CAIRNFS_ASSIGN_OR_RETURN(const FileRecord record, FileRecord::Decode(entry->value));
        bytes += record.allocated_bytes;
        return {};
      }));
  return bytes;
}

Result<std::vector<TrashEntry>> Namespace::TrashUnder(const Context& context, const std::vector<TrashEntry>& entries,
                                                      InodeId quota, size_t records_per_read) {
  std::vector<std::string> keys;
  for (const TrashEntry& entry : entries) keys.push_back(InodeKey(entry.parts.inode));
  std::vector<TrashEntry> under;
  CAIRNFS_RETURN_IF_ERROR(
      kv::ReadKeys(context, store_, keys, records_per_read, [&](size_t index, const kv::KvEntry* entry) -> Status {
        const auto record =
            entry == nullptr ? Result<InodeRecord>(InvalidArgument("")) : InodeRecord::Decode(entry->value);
        if (record.ok() && record->quota == quota) under.push_back(entries[index]);
        return {};
      }));
  return under;
}

Result<Attr> Namespace::Restore(const Context& context, const RestoreParams& params) {
  CAIRNFS_RETURN_IF_ERROR(ValidateName(params.to_name));
  const InodeId id = params.entry.parts.inode;
  return RetryOnConflict(context, "restore", PaceOf(options_), [&](int attempt) -> Result<Attr> {
    CAIRNFS_ASSIGN_OR_RETURN(const auto found, store_.Get(context, params.entry.key));
    if (!found || found->revision != params.entry.revision) {
      return MakeError(ErrorCode::kNotFound, "the trash does not have it any more");
    }
    CAIRNFS_ASSIGN_OR_RETURN(auto inode, LoadInode(context, store_, id));
    CAIRNFS_ASSIGN_OR_RETURN(const auto directory, LoadLiveDirectory(context, store_, params.to_parent));
    CAIRNFS_ASSIGN_OR_RETURN(const auto taken, FindDentry(context, store_, params.to_parent, params.to_name));
    if (taken) return MakeError(ErrorCode::kAlreadyExists, "there is a " + Describe(params.to_parent, params.to_name));
    const bool is_directory = IsDirectory(inode.record);
    CAIRNFS_ASSIGN_OR_RETURN(const auto moves, LoadMoves(context, store_));
    if (Status above = CheckNotAbove(context, store_, id, params.to_parent); !above.ok()) {
      // A walk over directories that move meanwhile may see a path that never was.
      CAIRNFS_ASSIGN_OR_RETURN(const auto moves_now, LoadMoves(context, store_));
      if (moves_now.revision != moves.revision) return MakeError(ErrorCode::kConflict, "directories moved");
      return above.error();
    }
    inode.record.parent = params.to_parent;
    CAIRNFS_ASSIGN_OR_RETURN(const uint64_t seals, CheckUnsealed(context, attempt, {params.to_parent}));
    kv::Transaction transaction;
    transaction.IfRevision(SealsKey(), seals);
    CAIRNFS_RETURN_IF_ERROR(MoveUnderQuota(context, store_, options_, id, inode.record, directory.record, transaction));
    {
      DirectoryTimesLock lock(directory_times_stripes_, options_, params.to_parent);
      BuildRestore(params, directory, inode, TimeFor(params.to_parent), transaction);
      if (is_directory) {
        transaction.IfRevision(MoveKey(), moves.revision).Put(MoveKey(), Encoder().U64(moves.record + 1).Take());
      }
      CAIRNFS_RETURN_IF_ERROR(store_.Commit(context, transaction));
    }
    restored.Pass();
    if (hints_) hints_->NoteName(DentryKey(params.to_parent, params.to_name), id);
    return LoadAttrOrBasics(context, store_, id, inode.record);
  });
}

Result<Namespace::Doomed> Namespace::Doom(const Context& context, std::span<const TrashEntry> entries) {
  assert(entries.size() <= kDoomedAtOnceMax);
  return RetryOnConflict(context, "the emptying of the trash", PaceOf(options_), [&](int) -> Result<Doomed> {
    Doomed result;
    kv::Transaction transaction;
    for (const TrashEntry& entry : entries) {
      CAIRNFS_ASSIGN_OR_RETURN(const auto found, store_.Get(context, entry.key));
      if (!found || found->revision != entry.revision) continue;  // restored, or another host was here
      const InodeId id = entry.parts.inode;
      if (entry.record.type == S_IFDIR) {
        transaction.Put(DoomedKey(id), "");
      } else {
        const auto inode = LoadInode(context, store_, id);
        if (!inode.ok() && !IsOfRecord(inode.error())) return inode.error();
        if (!inode.ok()) continue;  // nobody can remove what a damaged record tells of
        result.orphans.push_back(LoadAttrOrBasics(context, store_, id, inode->record));
        transaction.Put(OrphanKey(id), "");
      }
      transaction.IfRevision(entry.key, entry.revision).Delete(entry.key);
      result.entries++;
      result.bytes += entry.record.bytes;
    }
    if (result.entries == 0) return result;
    CAIRNFS_RETURN_IF_ERROR(store_.Commit(context, transaction));
    doomed.Pass();
    return result;
  });
}

Result<std::vector<InodeId>> Namespace::ListDoomed(const Context& context, size_t limit) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto range,
                           store_.Range(context, DoomedPrefix(), kv::PrefixEnd(DoomedPrefix()), limit));
  std::vector<InodeId> directories;
  for (const kv::KvEntry& entry : range.entries) {
    const auto parts = DecodeTrashKey(entry.key);
    if (parts) directories.push_back(parts->inode);
  }
  return directories;
}

Result<Namespace::Cleared> Namespace::ClearDoomed(const Context& context, InodeId directory) {
  return RetryOnConflict(context, "the emptying of the trash", PaceOf(options_), [&](int) -> Result<Cleared> {
    Cleared result;
    CAIRNFS_ASSIGN_OR_RETURN(const auto mark, store_.Get(context, DoomedKey(directory)));
    result.is_done = !mark;
    if (!mark) return result;  // another host has done it
    CAIRNFS_ASSIGN_OR_RETURN(const auto children, ReadDirectory(context, directory, "", kClearedAtOnce));
    kv::Transaction transaction;
    transaction.IfRevision(DoomedKey(directory), mark->revision);
    if (children.empty()) {
      AddDirectoryEmptyCompare(transaction, directory);
      transaction.Delete(DoomedKey(directory)).Put(OrphanKey(directory), "");
      CAIRNFS_ASSIGN_OR_RETURN(const auto self, LoadInode(context, store_, directory));
      CAIRNFS_RETURN_IF_ERROR(store_.Commit(context, transaction));
      result.removed.push_back(AttrOf(directory, self.record));
      result.is_done = true;
      return result;
    }
    std::set<InodeId> seen;
    for (const DirectoryEntry& child : children) {
      if (!seen.insert(child.inode).second) continue;  // one more name of the same: next time
      CAIRNFS_ASSIGN_OR_RETURN(auto entry, LoadEntry(context, store_, directory, child.name));
      transaction.IfRevision(DentryKey(directory, child.name), entry.dentry.revision)
          .IfRevision(InodeKey(entry.id()), entry.inode.revision)
          .Delete(DentryKey(directory, child.name));
      InodeRecord& record = entry.inode.record;
      const Timestamp now = TimeFor(directory);
      if (IsDirectory(record)) {
        record.nlink = 0;
        record.ctime = now;
        transaction.Put(InodeKey(entry.id()), record.Encode()).Put(DoomedKey(entry.id()), "");
        continue;
      }
      DropLink(transaction, entry.id(), record, now);
      result.removed.push_back(LoadAttrOrBasics(context, store_, entry.id(), record));
    }
    CAIRNFS_RETURN_IF_ERROR(store_.Commit(context, transaction));
    cleared.Pass();
    return result;
  });
}

}  // namespace cairnfs::meta
