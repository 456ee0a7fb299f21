#include "meta/access.h"

namespace cairnfs::meta {

Result<std::vector<Namespace::MarkedFile>> Namespace::ListMarks(const Context& context) {
  std::vector<MarkedFile> files;
  CAIRNFS_ASSIGN_OR_RETURN(auto range, store_.Range(context, "P", kv::PrefixEnd("P"), 0));
  for (const kv::KvEntry& entry : range.entries) {
    CAIRNFS_ASSIGN_OR_RETURN(MarkedFile marked, DecodeMark(entry));
    files.push_back(std::move(marked));
  }
  return files;
}

}  // namespace cairnfs::meta
