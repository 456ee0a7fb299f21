#include "meta/access.h"

namespace cairnfs::meta {

Result<FilesystemHeader> Namespace::ReadHeader(const Context& context) {
  CAIRNFS_ASSIGN_OR_RETURN(auto entry, store_.Get(context, HeaderKey()));
  if (!entry) return MakeError(ErrorCode::kNotFound, "there is no filesystem here");
  return FilesystemHeader::Decode(entry->value);
}

}  // namespace cairnfs::meta
