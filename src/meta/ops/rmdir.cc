#include "meta/look_ahead.h"

namespace cairnfs::meta {

Result<Attr> Namespace::Rmdir(const Context& context, InodeId parent, std::string_view name,
                              const std::optional<TrashParams>& trash, const std::function<Status(InodeId)>& check) {
  CAIRNFS_RETURN_IF_ERROR(ValidateName(name));
  return RetryOnConflict(context, "rmdir", PaceOf(options_), [&](int attempt) -> Result<Attr> {
    LookAhead ahead(store_);
    kv::KvStore& store = LookAt(context, ahead, {{parent, name}});
    CAIRNFS_ASSIGN_OR_RETURN(auto entry, LoadEntry(context, store, parent, name));
    if (!IsDirectory(entry)) {
      return MakeError(ErrorCode::kNotDirectory, Describe(parent, name) + " is not a directory");
    }
    CAIRNFS_ASSIGN_OR_RETURN(const uint64_t seals, CheckUnsealed(context, attempt, {entry.id()}));
    if (trash && trash->whole && seals != 0) CAIRNFS_RETURN_IF_ERROR(CheckNoneSealedBelow(context, entry.id()));
    // The transaction compares the inode's record, which each change of an attribute rewrites.
    if (check) CAIRNFS_RETURN_IF_ERROR(check(entry.id()));
    // In the first attempt the compare alone tells whether the directory is empty.
    if (attempt > 0 && !(trash && trash->whole)) {
      CAIRNFS_ASSIGN_OR_RETURN(const bool empty, IsEmptyDirectory(context, store_, entry.id()));
      if (!empty) return MakeError(ErrorCode::kNotEmpty, Describe(parent, name) + " is not empty");
    }
    CAIRNFS_ASSIGN_OR_RETURN(const bool in_trash, CommitRemoval(context, {parent, name, entry, seals}, trash));
    Attr attr = LoadAttrOrBasics(context, store, entry.id(), entry.inode.record);
    attr.in_trash = in_trash;
    return attr;
  });
}

}  // namespace cairnfs::meta
