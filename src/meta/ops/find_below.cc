// Finds ancestors by the directories that records name. One read takes all inodes a level up.
#include <set>
#include <unordered_map>

#include "meta/access.h"

namespace cairnfs::meta {
namespace {

constexpr size_t kSpansMax = 512;
constexpr int kLevelsMax = 4096;

using Records = std::unordered_map<InodeId, std::optional<InodeRecord>>;

Status LoadInodes(const Context& context, kv::KvStore& store, const std::vector<InodeId>& inodes, Records& records) {
  std::vector<std::string> keys;
  for (InodeId inode : inodes) keys.push_back(InodeKey(inode));
  return kv::ReadKeys(context, store, keys, kSpansMax, [&](size_t i, const kv::KvEntry* entry) -> Status {
    std::optional<InodeRecord>& record = records[inodes[i]];
    if (entry == nullptr) return {};
    CAIRNFS_ASSIGN_OR_RETURN(record, InodeRecord::Decode(entry->value));
    return {};
  });
}

// Loads the records of the inodes and of all directories above them, but not above `ends`.
Status LoadAncestry(const Context& context, kv::KvStore& store, const std::set<InodeId>& ends,
                    const std::vector<InodeId>& inodes, Records& records) {
  std::vector<InodeId> unknown = inodes;
  for (int level = 0; level < kLevelsMax && !unknown.empty(); level++) {
    CAIRNFS_RETURN_IF_ERROR(LoadInodes(context, store, unknown, records));
    std::set<InodeId> above;
    for (InodeId inode : unknown) {
      const std::optional<InodeRecord>& record = records[inode];
      if (!record || record->parent.value == 0 || ends.contains(inode)) continue;
      if (!records.contains(record->parent)) above.insert(record->parent);
    }
    unknown.assign(above.begin(), above.end());
  }
  return {};
}

}  // namespace

Result<std::vector<InodeId>> Namespace::FindBelow(const Context& context, InodeId directory,
                                                  const std::vector<InodeId>& inodes) {
  Records records;
  CAIRNFS_RETURN_IF_ERROR(LoadAncestry(context, store_, {directory}, inodes, records));
  auto lies_below = [&](InodeId inode) {
    const std::optional<InodeRecord>& file = records[inode];
    if (!file || file->nlink == 0) return false;
    if (!IsDirectory(*file) && (file->nlink > 1 || file->parent.value == 0)) return true;
    for (int level = 0; level < kLevelsMax; level++) {
      if (inode == directory) return true;
      const std::optional<InodeRecord>& record = records[inode];
      if (!record || inode == kRootInode || record->nlink == 0) return false;  // without a link: in the trash
      inode = record->parent;
    }
    return false;
  };
  std::vector<InodeId> below;
  for (InodeId inode : inodes) {
    if (lies_below(inode)) below.push_back(inode);
  }
  return below;
}

Result<std::vector<std::optional<InodeId>>> Namespace::FindNearest(const Context& context,
                                                                   const std::set<InodeId>& directories,
                                                                   const std::vector<InodeId>& inodes) {
  Records records;
  CAIRNFS_RETURN_IF_ERROR(LoadAncestry(context, store_, directories, inodes, records));
  auto nearest_of = [&](InodeId inode) -> std::optional<InodeId> {
    const std::optional<InodeRecord>& file = records[inode];
    if (file && !IsDirectory(*file) && (file->nlink > 1 || file->parent.value == 0)) return std::nullopt;
    for (int level = 0; level < kLevelsMax; level++) {
      if (directories.contains(inode)) return inode;
      const std::optional<InodeRecord>& record = records[inode];
      if (!record || inode == kRootInode) break;
      inode = record->parent;
    }
    return InodeId{};
  };
  std::vector<std::optional<InodeId>> nearest;
  for (InodeId inode : inodes) nearest.push_back(nearest_of(inode));
  return nearest;
}

}  // namespace cairnfs::meta
