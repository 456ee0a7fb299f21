#include "meta/access.h"

namespace cairnfs::meta {

Result<InodeId> Namespace::ParentOf(const Context& context, InodeId directory) {
  CAIRNFS_ASSIGN_OR_RETURN(auto loaded, LoadInode(context, store_, directory));
  if (!IsDirectory(loaded.record)) {
    return MakeError(ErrorCode::kNotDirectory, Describe(directory) + " is not a directory");
  }
  return loaded.record.parent;
}

}  // namespace cairnfs::meta
