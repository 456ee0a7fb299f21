#include "fs/directories.h"

#include <sys/stat.h>

namespace cairnfs::fs {
namespace {

Result<std::shared_ptr<const DirectoryListing>> List(const Context& context, meta::Namespace& names,
                                                     InodeId directory) {
  auto listing = std::make_shared<DirectoryListing>();
  auto parent = names.ParentOf(context, directory);
  listing->Add(".", directory, S_IFDIR);
  listing->Add("..", parent.ok() ? *parent : directory, S_IFDIR);
  CAIRNFS_RETURN_IF_ERROR(names.VisitDirectory(
      context, directory,
      [&](std::string_view name, InodeId inode, uint32_t type) { listing->Add(name, inode, type); }));
  return std::shared_ptr<const DirectoryListing>(std::move(listing));
}

}  // namespace

Result<HandleId> Directories::Open(const Context& context, InodeId inode) {
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, names_.GetAttr(context, inode));
  if ((attr.mode & S_IFMT) != S_IFDIR) return MakeError(ErrorCode::kNotDirectory, "not a directory");
  auto handle = std::make_shared<DirectoryHandle>();
  handle->inode = inode;
  table_.Hold(inode);
  return handles_.Add(std::move(handle));
}

Result<std::shared_ptr<const DirectoryListing>> Directories::Read(const Context& context, HandleId handle_id,
                                                                  InodeId inode, uint64_t offset) {
  std::shared_ptr<DirectoryHandle> handle = handles_.Find(handle_id);
  if (!handle) return MakeError(ErrorCode::kStale, "the directory is not open");
  MutexLock lock(handle->mutex);
  if (offset == 0 || !handle->listing) {
    CAIRNFS_ASSIGN_OR_RETURN(handle->listing, List(context, names_, inode));
  }
  return handle->listing;
}

void Directories::Release(HandleId handle_id) {
  std::shared_ptr<DirectoryHandle> handle = handles_.Take(handle_id);
  if (!handle) return;
  if (InodePtr inode = table_.Find(handle->inode)) table_.Unhold(inode);
}

}  // namespace cairnfs::fs
