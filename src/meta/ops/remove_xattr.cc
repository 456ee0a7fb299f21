#include "base/clock.h"
#include "meta/access.h"

namespace cairnfs::meta {

Status Namespace::RemoveXattr(const Context& context, InodeId inode, std::string_view name,
                              const PolicyEffect& effect) {
  CAIRNFS_RETURN_IF_ERROR(ValidateXattrName(name, options_));
  return RetryOnConflict(context, "removexattr", PaceOf(options_), [&](int attempt) -> Status {
    CAIRNFS_ASSIGN_OR_RETURN(auto loaded, LoadInode(context, store_, inode));
    const std::string key = XattrKey(inode, name);
    CAIRNFS_ASSIGN_OR_RETURN(auto entry, store_.Get(context, key));
    if (!entry) return NoXattr(inode, name);
    kv::Transaction transaction;
    if (!effect.only_keeps) {
      CAIRNFS_ASSIGN_OR_RETURN(const uint64_t seals, CheckUnsealed(context, attempt, {inode}));
      transaction.IfRevision(SealsKey(), seals);
    }
    loaded.record.ctime = Clock::WallTime();
    transaction.IfRevision(InodeKey(inode), loaded.revision).Put(InodeKey(inode), loaded.record.Encode()).Delete(key);
    CAIRNFS_RETURN_IF_ERROR(AddPolicyEffect(context, store_, inode, loaded.record, effect, transaction));
    CAIRNFS_RETURN_IF_ERROR(store_.Commit(context, transaction));
    return {};
  });
}

}  // namespace cairnfs::meta
