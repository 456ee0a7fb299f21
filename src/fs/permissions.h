// Rights that the kernel does not check for us, because it is not asked through a mount.
#pragma once

#include "fs/filesystem.h"

namespace cairnfs::fs {

// Whether open(2) would let the caller open the file with these attributes: kPermission if not.
Status CheckMayOpen(const Credentials& caller, const meta::Attr& attr, const OpenFlags& flags);
// Whether the caller may give another file a name in the directory with these attributes that stands for a file of
// `owner`, or (nullopt) for nothing: kPermission if not.
Status CheckMayReplace(const Credentials& caller, const meta::Attr& directory, std::optional<uint32_t> owner);
// Names::CheckMayRename.
Status CheckMayRename(const Context& context, meta::Namespace& names, const Credentials& caller, InodeId directory,
                      InodeId final_parent);
// Whether the caller may go from the root of the filesystem into the directory: kPermission if not.
Status CheckMayEnter(const Context& context, meta::Namespace& names, const Credentials& caller, InodeId directory);
// Whether the caller may see the directory's path: enter and list it, and all above it. False also where that is not
// known.
bool MayListAbove(const Context& context, meta::Namespace& names, const Credentials& caller, InodeId directory);
// Whether the caller could find the file with this path below the directory by listing it and each on the way down.
// False also where that is not known, or the file is not there any more.
bool MayFindBelow(const Context& context, meta::Namespace& names, const Caller& caller, InodeId directory,
                  std::string_view path);
// Whether the caller may give the inode a name in the directory, which is in nobody's: it may search every directory
// from the root on, and write to that one; and to the inode itself, where that is a directory that lay in another one,
// as its ".." changes. kPermission; kNotFound: the directory, or one above it, is removed.
Status CheckMayName(const Context& context, meta::Namespace& names, const Credentials& caller, InodeId inode,
                    InodeId lay_in, InodeId directory);

}  // namespace cairnfs::fs
