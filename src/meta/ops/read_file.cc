#include "meta/access.h"

namespace cairnfs::meta {

Result<FileState> Namespace::ReadFile(const Context& context, InodeId inode, WithMarks marks) {
  std::vector<kv::KvSpan> spans = {
      {InodeKey(inode), "", 0}, {FileKey(inode), "", 0}, {XattrKey(inode, kCapabilityXattr), "", 0}};
  const std::string prefix = MarkPrefix(inode);
  if (marks == WithMarks::kYes) spans.push_back({prefix, kv::PrefixEnd(prefix), 0});
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot snapshot, store_.Read(context, spans));
  auto first = [&](size_t span) -> const kv::KvEntry* {
    const auto& entries = snapshot.ranges[span].entries;
    return entries.empty() ? nullptr : &entries.front();
  };
  FileState state;
  state.revision = snapshot.revision;
  if (first(0) == nullptr) return MakeError(ErrorCode::kNotFound, "there is no " + Describe(inode));
  CAIRNFS_ASSIGN_OR_RETURN(state.inode, InodeRecord::Decode(first(0)->value));
  state.inode_revision = first(0)->revision;
  if (const kv::KvEntry* entry = first(1)) {
    CAIRNFS_ASSIGN_OR_RETURN(state.record, FileRecord::Decode(entry->value));
    state.record_revision = entry->revision;
  }
  state.has_capability = first(2) != nullptr;
  if (marks == WithMarks::kNo) return state;
  for (const kv::KvEntry& entry : snapshot.ranges.back().entries) {
    CAIRNFS_ASSIGN_OR_RETURN(MarkedFile marked, DecodeMark(entry));
    state.marks.push_back(std::move(marked.mark));
  }
  return state;
}

}  // namespace cairnfs::meta
