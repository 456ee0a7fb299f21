#include "meta/access.h"

namespace cairnfs::meta {

Result<Attr> Namespace::Lookup(InodeId parent, std::string_view name) {
  CAIRNFS_RETURN_IF_ERROR(ValidateName(name));
  CAIRNFS_ASSIGN_OR_RETURN(auto entry, LoadEntry(store_, parent, name));
  return LoadAttr(store_, entry.id(), entry.inode.record);
}

}  // namespace cairnfs::meta
