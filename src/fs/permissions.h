// Rights that the kernel does not check for us, because it is not asked through a mount.
#pragma once

#include "fs/filesystem.h"

namespace cairnfs::fs {

// Whether open(2) would let the caller open the file with these attributes: kPermission if not.
Status CheckMayOpen(const Credentials& caller, const meta::Attr& attr, const OpenFlags& flags);
// Names::CheckMayRename.
Status CheckMayRename(const Context& context, meta::Namespace& names, const Credentials& caller, InodeId directory,
                      InodeId final_parent);

}  // namespace cairnfs::fs
