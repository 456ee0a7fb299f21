#include "meta/look_ahead.h"

namespace cairnfs::meta {

Result<std::string> Namespace::GetXattr(const Context& context, InodeId inode, std::string_view name) {
  CAIRNFS_RETURN_IF_ERROR(ValidateXattrName(name, options_));
  LookAhead ahead(store_);
  kv::KvStore& store = options_.remote ? ahead : store_;
  if (options_.remote) {
    ahead.Want(XattrKey(inode, name));
    ahead.Want(InodeKey(inode));
    ahead.Fetch(context);
  }
  CAIRNFS_ASSIGN_OR_RETURN(auto entry, store.Get(context, XattrKey(inode, name)));
  if (entry) return std::move(entry->value);
  CAIRNFS_RETURN_IF_ERROR(LoadInode(context, store, inode));
  return NoXattr(inode, name);
}

}  // namespace cairnfs::meta
