#include "meta/access.h"

namespace cairnfs::meta {

Result<std::string> Namespace::ReadLink(const Context& context, InodeId inode) {
  CAIRNFS_ASSIGN_OR_RETURN(auto loaded, LoadInode(context, store_, inode));
  if (!S_ISLNK(loaded.record.mode)) {
    return MakeError(ErrorCode::kInvalidArgument, Describe(inode) + " is not a symbolic link");
  }
  return std::move(loaded.record.symlink_target);
}

}  // namespace cairnfs::meta
