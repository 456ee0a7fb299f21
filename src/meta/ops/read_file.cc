#include "meta/access.h"

namespace cairnfs::meta {

Result<FileState> Namespace::ReadFile(InodeId inode) {
  const std::string pending = PendingPrefix(inode);
  const kv::KvSpan spans[] = {{InodeKey(inode), "", 0},
                              {FileKey(inode), "", 0},
                              {XattrKey(inode, "security.capability"), "", 0},
                              {pending, kv::PrefixEnd(pending), 0}};
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot snapshot, store_.Read(spans));
  auto first = [&](size_t span) -> const kv::KvEntry* {
    const auto& entries = snapshot.ranges[span].entries;
    return entries.empty() ? nullptr : &entries.front();
  };
  FileState state;
  state.revision = snapshot.revision;
  if (first(0) == nullptr) return MakeError(ErrorCode::kNotFound, "there is no " + Describe(inode));
  CAIRNFS_ASSIGN_OR_RETURN(state.inode, InodeRecord::Decode(first(0)->value));
  if (const kv::KvEntry* entry = first(1)) {
    CAIRNFS_ASSIGN_OR_RETURN(state.record, FileRecord::Decode(entry->value));
    state.record_revision = entry->revision;
  }
  state.has_capability = first(2) != nullptr;
  for (const kv::KvEntry& entry : snapshot.ranges[3].entries) {
    auto key = DecodePendingKey(entry.key);
    if (!key) return MakeError(ErrorCode::kCorrupt, "the key of a pending record of " + Describe(inode));
    CAIRNFS_ASSIGN_OR_RETURN(PendingRecord record, PendingRecord::Decode(entry.value));
    state.pending.push_back({std::move(key->node), record, entry.revision});
  }
  return state;
}

}  // namespace cairnfs::meta
