#include "meta/look_ahead.h"

namespace cairnfs::meta {

Result<Attr> Namespace::Lookup(const Context& context, InodeId parent, std::string_view name, WithMarks marks) {
  CAIRNFS_RETURN_IF_ERROR(ValidateName(name));
  LookAhead ahead(store_);
  kv::KvStore& store = LookAt(context, ahead, {{parent, name}}, marks);
  CAIRNFS_ASSIGN_OR_RETURN(auto entry, LoadEntry(context, store, parent, name));
  CAIRNFS_ASSIGN_OR_RETURN(Attr attr, LoadAttr(context, store, entry.id(), entry.inode.record));
  if (options_.remote) attr.inode_revision = entry.inode.revision;
  if (options_.remote && IsRegular(entry.inode.record)) {
    hints_->NoteEntry(DentryKey(parent, name), entry, attr);
    if (marks == WithMarks::kYes) {
      const std::string prefix = MarkPrefix(entry.id());
      CAIRNFS_ASSIGN_OR_RETURN(auto range, store.Range(context, prefix, kv::PrefixEnd(prefix), 0));
      for (const kv::KvEntry& each : range.entries) {
        CAIRNFS_ASSIGN_OR_RETURN(MarkedFile marked, DecodeMark(each));
        attr.marks.push_back(std::move(marked.mark));
      }
    }
  }
  return attr;
}

}  // namespace cairnfs::meta
