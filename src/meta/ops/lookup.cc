#include "meta/look_ahead.h"

namespace cairnfs::meta {

Result<Attr> Namespace::Lookup(InodeId parent, std::string_view name) {
  CAIRNFS_RETURN_IF_ERROR(ValidateName(name));
  LookAhead ahead(store_);
  kv::KvStore& store = LookAt(ahead, {{parent, name}}, /*with_pending=*/true);
  CAIRNFS_ASSIGN_OR_RETURN(auto entry, LoadEntry(store, parent, name));
  CAIRNFS_ASSIGN_OR_RETURN(Attr attr, LoadAttr(store, entry.id(), entry.inode.record));
  if (options_.remote && IsRegular(entry.inode.record)) {
    hints_->NoteEntry(DentryKey(parent, name), entry, attr);
    CAIRNFS_RETURN_IF_ERROR(LoadPending(store, entry.id(), attr.pending));
  }
  return attr;
}

}  // namespace cairnfs::meta
