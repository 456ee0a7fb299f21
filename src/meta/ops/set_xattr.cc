// Every change of an extended attribute rewrites the inode's I record (its ctime), so comparing that record's revision
// is enough to know that none of the inode's attributes changed.
#include "base/clock.h"
#include "meta/access.h"
#include "meta/policy_records.h"

namespace cairnfs::meta {

Status AddPolicyEffect(const Context& context, kv::KvStore& store, InodeId directory, const InodeRecord& record,
                       const PolicyEffect& effect, kv::Transaction& transaction) {
  using Own = PolicyEffect::Own;
  if (effect.own == Own::kHasOne) transaction.Put(PolicyKey(directory), PolicyKeyValue());
  if (effect.own == Own::kHasNone) CAIRNFS_RETURN_IF_ERROR(EndPolicy(context, store, directory, transaction));
  if (effect.ends_commit) transaction.Delete(CommitKey(directory));
  return effect.touches_above ? TouchPolicy(context, store, record.parent, transaction) : Status();
}

Status Namespace::SetXattr(const Context& context, InodeId inode, std::string_view name, std::string_view value,
                           XattrMode mode, std::optional<uint32_t> uid, const XattrCheck& check,
                           const PolicyEffect& effect) {
  CAIRNFS_RETURN_IF_ERROR(ValidateXattrName(name, options_));
  if (value.size() > options_.xattr_value_bytes_max) {
    return MakeError(ErrorCode::kValueTooLarge, "the value of an extended attribute has at most " +
                                                    std::to_string(options_.xattr_value_bytes_max) + " bytes");
  }
  return RetryOnConflict(context, "setxattr", PaceOf(options_), [&](int attempt) -> Status {
    CAIRNFS_ASSIGN_OR_RETURN(auto loaded, LoadInode(context, store_, inode));
    kv::Transaction transaction;
    if (!effect.only_keeps) {
      CAIRNFS_ASSIGN_OR_RETURN(const uint64_t seals, CheckUnsealed(context, attempt, {inode}));
      transaction.IfRevision(SealsKey(), seals);
    }
    const std::string key = XattrKey(inode, name);
    if (mode != XattrMode::kSet || check) {
      CAIRNFS_ASSIGN_OR_RETURN(auto entry, store_.Get(context, key));
      if (!entry && mode == XattrMode::kReplace) return NoXattr(inode, name);
      if (entry && mode == XattrMode::kCreate) {
        return MakeError(ErrorCode::kAlreadyExists,
                         Describe(inode) + " has the extended attribute '" + std::string(name) + "'");
      }
      if (check) CAIRNFS_RETURN_IF_ERROR(check(entry ? std::optional(entry->value) : std::nullopt));
    }
    loaded.record.ctime = Clock::WallTime();
    transaction.makes_names_for = uid;
    transaction.IfRevision(InodeKey(inode), loaded.revision)
        .Put(InodeKey(inode), loaded.record.Encode())
        .Put(key, std::string(value));
    CAIRNFS_RETURN_IF_ERROR(AddPolicyEffect(context, store_, inode, loaded.record, effect, transaction));
    CAIRNFS_RETURN_IF_ERROR(store_.Commit(context, transaction));
    return {};
  });
}

}  // namespace cairnfs::meta
