// Reading directories: a listing is taken once, from the first read at offset 0, so that cookies stay true.
#include <sys/stat.h>

#include "fs/impl.h"

namespace cairnfs::fs {
namespace {

Result<std::shared_ptr<const DirectoryListing>> List(meta::Namespace& names, InodeId directory) {
  auto listing = std::make_shared<DirectoryListing>();
  auto parent = names.ParentOf(directory);
  listing->Add(".", directory, S_IFDIR);
  listing->Add("..", parent.ok() ? *parent : directory, S_IFDIR);
  CAIRNFS_RETURN_IF_ERROR(names.VisitDirectory(
      directory, [&](std::string_view name, InodeId inode, uint32_t type) { listing->Add(name, inode, type); }));
  return std::shared_ptr<const DirectoryListing>(std::move(listing));
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

Result<std::shared_ptr<const DirectoryListing>> FileSystem::ReadDirectory(HandleId handle_id, InodeId inode,
                                                                          uint64_t offset) {
  std::shared_ptr<DirectoryHandle> handle = impl_->directories.Find(handle_id);
  if (!handle) return MakeError(ErrorCode::kStale, "the directory is not open");
  MutexLock lock(handle->mutex);
  if (offset == 0 || !handle->listing) {
    CAIRNFS_ASSIGN_OR_RETURN(handle->listing, List(impl_->parts.names, inode));
  }
  return handle->listing;
}

void FileSystem::ReleaseDirectory(HandleId handle_id) {
  std::shared_ptr<DirectoryHandle> handle = impl_->directories.Take(handle_id);
  if (!handle) return;
  if (InodePtr inode = impl_->table.Find(handle->inode)) impl_->table.Unhold(inode);
}

}  // namespace cairnfs::fs
