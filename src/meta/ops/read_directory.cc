#include "meta/look_ahead.h"

namespace cairnfs::meta {
namespace {

constexpr size_t kEntriesPerRead = 4096;

Status CheckIsDirectory(InodeId inode, const InodeRecord& record) {
  if (IsDirectory(record)) return {};
  return MakeError(ErrorCode::kNotDirectory, Describe(inode) + " is not a directory");
}

// `key` is that of an entry of the directory, and begins with `prefix`.
Result<DentryRecord> DecodeEntry(InodeId directory, std::string_view prefix, std::string_view key,
                                 std::string_view value) {
  auto dentry = DentryRecord::Decode(value);
  if (!dentry.ok()) return dentry.error().WithContext(Describe(directory, key.substr(prefix.size())));
  return dentry;
}

}  // namespace

Result<std::vector<DirectoryEntry>> Namespace::ReadDirectory(const Context& context, InodeId directory,
                                                             std::string_view after, size_t limit) {
  const std::string prefix = DentryPrefix(directory);
  std::string begin = prefix;
  // The least key after that of `after`, whether or not that entry is still there.
  if (!after.empty()) begin.append(after).push_back('\0');
  LookAhead ahead(store_);
  kv::KvStore& store = options_.remote ? ahead : store_;
  if (options_.remote) {
    ahead.Want(InodeKey(directory));
    if (limit > 0) ahead.WantRange(begin, kv::PrefixEnd(prefix), limit);
    ahead.Fetch(context);
  }
  CAIRNFS_ASSIGN_OR_RETURN(auto loaded, LoadInode(context, store, directory));
  CAIRNFS_RETURN_IF_ERROR(CheckIsDirectory(directory, loaded.record));
  std::vector<DirectoryEntry> entries;
  if (limit == 0) return entries;
  CAIRNFS_ASSIGN_OR_RETURN(auto range, store.Range(context, begin, kv::PrefixEnd(prefix), limit));
  entries.reserve(range.entries.size());
  for (const kv::KvEntry& entry : range.entries) {
    CAIRNFS_ASSIGN_OR_RETURN(const DentryRecord dentry, DecodeEntry(directory, prefix, entry.key, entry.value));
    entries.push_back({entry.key.substr(prefix.size()), dentry.inode, dentry.type});
  }
  return entries;
}

Status Namespace::VisitDirectory(const Context& context, InodeId directory, const EntryVisitor& visit) {
  if (options_.remote) {
    for (std::string after;;) {
      CAIRNFS_ASSIGN_OR_RETURN(const auto entries, ReadDirectory(context, directory, after, kEntriesPerRead));
      for (const DirectoryEntry& entry : entries) visit(entry.name, entry.inode, entry.type);
      if (entries.size() < kEntriesPerRead) return {};
      after = entries.back().name;
    }
  }
  CAIRNFS_ASSIGN_OR_RETURN(const auto loaded, LoadInode(context, store_, directory));
  CAIRNFS_RETURN_IF_ERROR(CheckIsDirectory(directory, loaded.record));
  const std::string prefix = DentryPrefix(directory);
  Status decoded;
  const auto visit_entry = [&](const kv::KvEntryView& entry) {
    const auto dentry = DecodeEntry(directory, prefix, entry.key, entry.value);
    if (dentry.ok()) {
      visit(entry.key.substr(prefix.size()), dentry->inode, dentry->type);
    } else {
      decoded = dentry.error();
    }
    return dentry.ok();
  };
  CAIRNFS_RETURN_IF_ERROR(store_.VisitRange(context, prefix, kv::PrefixEnd(prefix), visit_entry));
  return decoded;
}

}  // namespace cairnfs::meta
