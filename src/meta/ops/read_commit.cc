#include "meta/access.h"
#include "meta/commit_record.h"

namespace cairnfs::meta {

Result<std::optional<Commit>> Namespace::ReadCommit(const Context& context, InodeId directory) {
  const std::string prefix = CommitKey(directory);
  CAIRNFS_ASSIGN_OR_RETURN(const auto range, store_.Range(context, prefix, kv::PrefixEnd(prefix), 0));
  std::optional<Commit> commit;
  bool has_part = false;
  for (const kv::KvEntry& entry : range.entries) {
    if (entry.key == prefix) {  // the first
      CAIRNFS_ASSIGN_OR_RETURN(CommitRecord record, CommitRecord::Decode(entry.value));
      commit = Commit{.record = std::move(record), .sum = {}, .revision = entry.revision};
      continue;
    }
    if (!commit) break;  // the directory was removed meanwhile
    CAIRNFS_ASSIGN_OR_RETURN(const CommitPart part, CommitPart::Decode(entry.value));
    if (part.commit_at != commit->record.at) continue;  // of an earlier one
    if (has_part) {
      commit->sum.Add(part);
    } else {
      commit->sum = part;
    }
    has_part = true;
  }
  return commit;
}

}  // namespace cairnfs::meta
