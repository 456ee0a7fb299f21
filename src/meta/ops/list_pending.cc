#include "meta/access.h"

namespace cairnfs::meta {

Result<std::vector<Namespace::PendingFile>> Namespace::ListPending() {
  std::vector<PendingFile> files;
  CAIRNFS_ASSIGN_OR_RETURN(auto range, store_.Range("P", kv::PrefixEnd("P"), 0));
  for (const kv::KvEntry& entry : range.entries) {
    auto key = DecodePendingKey(entry.key);
    if (!key) return MakeError(ErrorCode::kCorrupt, "the key of a pending record does not decode");
    CAIRNFS_ASSIGN_OR_RETURN(PendingRecord record, PendingRecord::Decode(entry.value));
    files.push_back({key->inode, {std::move(key->node), record, entry.revision}});
  }
  return files;
}

}  // namespace cairnfs::meta
