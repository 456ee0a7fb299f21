// Reading directories: a listing is taken once, from the first read at offset 0, so that cookies stay true.
#include <sys/stat.h>

#include "fs/impl.h"

namespace cairnfs::fs {
namespace {

constexpr size_t kEntriesPerRead = 4096;

Result<std::vector<FileSystem::ListedEntry>> List(meta::Namespace& names, InodeId directory) {
  std::vector<FileSystem::ListedEntry> entries;
  auto parent = names.ParentOf(directory);
  InodeId up = parent.ok() ? *parent : directory;
  entries.push_back({".", directory, S_IFDIR, 1});
  entries.push_back({"..", up, S_IFDIR, 2});
  std::string after;
  for (;;) {
    CAIRNFS_ASSIGN_OR_RETURN(std::vector<meta::DirectoryEntry> some,
                             names.ReadDirectory(directory, after, kEntriesPerRead));
    for (meta::DirectoryEntry& entry : some) {
      entries.push_back({std::move(entry.name), entry.inode, entry.type, entries.size() + 1});
    }
    if (some.size() < kEntriesPerRead) return entries;
    after = entries.back().name;
  }
}

}  // namespace

Result<HandleId> FileSystem::OpenDirectory(InodeId inode) {
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, impl_->parts.names.GetAttr(inode));
  if ((attr.mode & S_IFMT) != S_IFDIR) return MakeError(ErrorCode::kNotDirectory, "not a directory");
  auto handle = std::make_shared<DirectoryHandle>();
  handle->inode = inode;
  impl_->table.Hold(inode);
  return impl_->directories.Add(std::move(handle));
}

Result<std::vector<FileSystem::ListedEntry>> FileSystem::ReadDirectory(HandleId handle_id, InodeId inode,
                                                                       uint64_t offset, size_t limit) {
  std::shared_ptr<DirectoryHandle> handle = impl_->directories.Find(handle_id);
  if (!handle) return MakeError(ErrorCode::kStale, "the directory is not open");
  MutexLock lock(handle->mutex);
  if (offset == 0 || !handle->listed) {
    CAIRNFS_ASSIGN_OR_RETURN(handle->entries, List(impl_->parts.names, inode));
    handle->listed = true;
  }
  std::vector<ListedEntry> entries;
  if (offset >= handle->entries.size()) return entries;
  size_t end = handle->entries.size() - offset > limit ? offset + limit : handle->entries.size();
  entries.assign(handle->entries.begin() + static_cast<ptrdiff_t>(offset),
                 handle->entries.begin() + static_cast<ptrdiff_t>(end));
  return entries;
}

void FileSystem::ReleaseDirectory(HandleId handle_id) {
  std::shared_ptr<DirectoryHandle> handle = impl_->directories.Take(handle_id);
  if (!handle) return;
  if (InodePtr inode = impl_->table.Find(handle->inode)) impl_->table.Unhold(inode);
}

}  // namespace cairnfs::fs
