#include "meta/access.h"

namespace cairnfs::meta {
namespace {

constexpr size_t kListedOrphansPerPage = 1024;

}  // namespace

Result<std::vector<InodeId>> Namespace::ListOrphans(const Context& context) {
  std::vector<InodeId> orphans;
  std::string begin = "O";
  for (;;) {
    CAIRNFS_ASSIGN_OR_RETURN(auto range, store_.Range(context, begin, kv::PrefixEnd("O"), kListedOrphansPerPage));
    for (const kv::KvEntry& entry : range.entries) {
      if (auto inode = InodeOfKey(entry.key)) orphans.push_back(*inode);
    }
    if (!range.more || range.entries.empty()) return orphans;
    begin = range.entries.back().key + '\0';
  }
}

}  // namespace cairnfs::meta
