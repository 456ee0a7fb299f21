#include "fs/levels.h"

#include <sys/stat.h>

#include "base/clock.h"
#include "cairnfs/cairnfs.h"

namespace cairnfs::fs {

std::string_view NameOf(Durability level) {
  return level == Durability::kLocal ? CAIRNFS_DURABILITY_LOCAL : CAIRNFS_DURABILITY_REPLICATED;
}

std::optional<Durability> DurabilityOfName(std::string_view name) {
  for (Durability level : {Durability::kLocal, Durability::kReplicated}) {
    if (name == NameOf(level)) return level;
  }
  return std::nullopt;
}

Result<Levels::ByDirectory> Levels::Read(const Context& context) {
  const auto now = Clock::Now();
  {
    MutexLock lock(mutex_);
    if (read_at_ && now - *read_at_ < kReadEvery) return known_;
  }
  const std::string prefix = meta::LevelsPrefix();
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvRange range, kv_.Range(context, prefix, kv::PrefixEnd(prefix), 0));
  ByDirectory levels;
  for (const kv::KvEntry& entry : range.entries) {
    CAIRNFS_ASSIGN_OR_RETURN(const meta::LevelRecord record, meta::LevelRecord::Decode(entry.value));
    const auto directory = meta::InodeOfLevelKey(entry.key);
    if (!directory) return MakeError(ErrorCode::kCorrupt, "the key of a directory's level does not decode");
    levels[*directory] = record.is_replicated ? Durability::kReplicated : Durability::kLocal;
  }
  MutexLock lock(mutex_);
  known_ = levels;
  read_at_ = now;
  return levels;
}

Result<std::vector<std::optional<Durability>>> Levels::Find(const Context& context,
                                                            const std::vector<InodeId>& inodes) {
  std::vector<std::optional<Durability>> levels(inodes.size(), of_mount_);
  CAIRNFS_ASSIGN_OR_RETURN(const ByDirectory set, Read(context));
  if (set.empty() || inodes.empty()) return levels;
  std::set<InodeId> directories;
  for (const auto& [directory, level] : set) directories.insert(directory);
  CAIRNFS_ASSIGN_OR_RETURN(const auto nearest, names_.FindNearest(context, directories, inodes));
  for (size_t i = 0; i < inodes.size(); i++) {
    if (!nearest[i]) {
      levels[i].reset();
    } else if (nearest[i]->value != 0) {
      levels[i] = set.at(*nearest[i]);
    }
  }
  return levels;
}

Result<std::vector<Durability>> Levels::Of(const Context& context, const std::vector<InodeId>& inodes) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto found, Find(context, inodes));
  std::vector<Durability> levels;
  levels.reserve(found.size());
  // Where it is not known where one lies: no less than somebody may rely on.
  for (const auto& level : found) levels.push_back(level.value_or(Durability::kReplicated));
  return levels;
}

Result<bool> Levels::MayLackCopies(const Context& context, InodeId from, InodeId to) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto levels, Find(context, {from, to}));
  return levels[0] != Durability::kReplicated && levels[1] != Durability::kLocal;
}

Result<bool> Levels::HasOwn(const Context& context, InodeId directory) {
  CAIRNFS_ASSIGN_OR_RETURN(const ByDirectory set, Read(context));
  return set.contains(directory);
}

Result<Durability> Levels::Of(const Context& context, InodeId inode) {
  CAIRNFS_ASSIGN_OR_RETURN(const std::vector<Durability> levels, Of(context, std::vector<InodeId>{inode}));
  return levels[0];
}

Status Levels::Set(const Context& context, InodeId directory, std::optional<Durability> level) {
  CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr attr, names_.GetAttr(context, directory));
  if (!S_ISDIR(attr.mode)) {
    return MakeError(ErrorCode::kNotDirectory, "a level is set for a directory, and counts for all that is below it");
  }
  const std::string key = meta::LevelKey(directory);
  kv::Transaction transaction;
  transaction.IfExists(meta::InodeKey(directory));
  if (level) {
    transaction.Put(key, meta::LevelRecord{*level == Durability::kReplicated}.Encode());
  } else {
    CAIRNFS_ASSIGN_OR_RETURN(const auto entry, kv_.Get(context, key));
    if (!entry) return MakeError(ErrorCode::kNoData, "no level is set for this directory");
    transaction.Delete(key);
  }
  auto committed = kv_.Commit(context, transaction);
  {
    MutexLock lock(mutex_);
    read_at_.reset();
  }
  if (committed.ok()) return {};
  if (committed.error().code == ErrorCode::kConflict) return MakeError(ErrorCode::kNotFound, "it was removed");
  return committed.error();
}

}  // namespace cairnfs::fs
