#include "meta/look_ahead.h"

namespace cairnfs::meta {

Result<std::vector<DirectoryEntry>> Namespace::ReadDirectory(InodeId directory, std::string_view after, size_t limit) {
  const std::string prefix = DentryPrefix(directory);
  std::string begin = prefix;
  // The least key after that of `after`, be that entry still there or not.
  if (!after.empty()) begin.append(after).push_back('\0');
  LookAhead ahead(store_);
  kv::KvStore& store = options_.remote ? ahead : store_;
  if (options_.remote) {
    ahead.Want(InodeKey(directory));
    if (limit > 0) ahead.WantRange(begin, kv::PrefixEnd(prefix), limit);
    ahead.Fetch();
  }
  CAIRNFS_ASSIGN_OR_RETURN(auto loaded, LoadInode(store, directory));
  if (!IsDirectory(loaded.record)) {
    return MakeError(ErrorCode::kNotDirectory, Describe(directory) + " is not a directory");
  }
  std::vector<DirectoryEntry> entries;
  if (limit == 0) return entries;
  CAIRNFS_ASSIGN_OR_RETURN(auto range, store.Range(begin, kv::PrefixEnd(prefix), limit));
  entries.reserve(range.entries.size());
  for (const kv::KvEntry& entry : range.entries) {
    std::string name = entry.key.substr(prefix.size());
    auto dentry = DentryRecord::Decode(entry.value);
    if (!dentry.ok()) return dentry.error().WithContext(Describe(directory, name));
    entries.push_back({std::move(name), dentry->inode, dentry->type});
  }
  return entries;
}

}  // namespace cairnfs::meta
