#include "meta/access.h"

namespace cairnfs::meta {

Result<std::string> Namespace::GetXattr(InodeId inode, std::string_view name) {
  CAIRNFS_RETURN_IF_ERROR(ValidateXattrName(name, options_));
  CAIRNFS_ASSIGN_OR_RETURN(auto entry, store_.Get(XattrKey(inode, name)));
  if (entry) return std::move(entry->value);
  CAIRNFS_RETURN_IF_ERROR(LoadInode(store_, inode));
  return NoXattr(inode, name);
}

}  // namespace cairnfs::meta
