// Directories: reading them. A listing is taken once, from the first read at offset 0, so that cookies stay true.
#pragma once

#include <memory>

#include "fs/directory_listing.h"
#include "fs/handle.h"

namespace cairnfs::fs {

class Directories {
 public:
  // Both outlive it.
  Directories(meta::Namespace& names, InodeTable& table) : names_(names), table_(table) {}

  Result<HandleId> Open(const Context& context, InodeId inode);
  // The whole listing, "." and ".." first; with `offset` 0 as it is now.
  Result<std::shared_ptr<const DirectoryListing>> Read(const Context& context, HandleId handle, InodeId inode,
                                                       uint64_t offset);
  void Release(HandleId handle);

 private:
  meta::Namespace& names_;
  InodeTable& table_;
  IdTable<DirectoryHandle> handles_;
};

}  // namespace cairnfs::fs
