#include "meta/look_ahead.h"

namespace cairnfs::meta {

Result<Attr> Namespace::Rmdir(const Context& context, InodeId parent, std::string_view name) {
  CAIRNFS_RETURN_IF_ERROR(ValidateName(name));
  return RetryOnConflict(context, "rmdir", PaceOf(options_), [&](int attempt) -> Result<Attr> {
    LookAhead ahead(store_);
    kv::KvStore& store = LookAt(context, ahead, {{parent, name}});
    CAIRNFS_ASSIGN_OR_RETURN(auto entry, LoadEntry(context, store, parent, name));
    if (!IsDirectory(entry)) {
      return MakeError(ErrorCode::kNotDirectory, Describe(parent, name) + " is not a directory");
    }
    // In the first attempt the compare alone tells whether the directory is empty.
    if (attempt > 0) {
      CAIRNFS_ASSIGN_OR_RETURN(const bool empty, IsEmptyDirectory(context, store_, entry.id()));
      if (!empty) return MakeError(ErrorCode::kNotEmpty, Describe(parent, name) + " is not empty");
    }
    CAIRNFS_RETURN_IF_ERROR(CommitRemoval(context, parent, name, entry));
    return LoadAttrOrBasics(context, store, entry.id(), entry.inode.record);
  });
}

}  // namespace cairnfs::meta
