#include "meta/access.h"

namespace cairnfs::meta {
namespace {

constexpr size_t kXattrsPerPage = 1024;

}  // namespace

Result<std::vector<std::string>> Namespace::ListXattrs(const Context& context, InodeId inode) {
  CAIRNFS_RETURN_IF_ERROR(LoadInode(context, store_, inode));
  const std::string prefix = XattrPrefix(inode);
  std::vector<std::string> names;
  std::string begin = prefix;
  for (;;) {
    CAIRNFS_ASSIGN_OR_RETURN(auto range, store_.Range(context, begin, kv::PrefixEnd(prefix), kXattrsPerPage));
    for (const kv::KvEntry& entry : range.entries) names.push_back(entry.key.substr(prefix.size()));
    if (!range.more || range.entries.empty()) return names;
    begin = range.entries.back().key + '\0';
  }
}

}  // namespace cairnfs::meta
