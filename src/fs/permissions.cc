#include "fs/permissions.h"

#include <sys/stat.h>

#include <algorithm>

namespace cairnfs::fs {
namespace {

constexpr uint32_t kRead = 4, kWrite = 2, kSearch = 1;
constexpr size_t kLevelsJudgedMax = 4096;

// As the kernel judges by the mode: the class of the owner, of a group, or of all others.
bool Allows(const meta::Attr& attr, uint32_t uid, bool is_member, uint32_t rights) {
  const uint32_t shift = uid == attr.uid ? 6 : (is_member ? 3 : 0);
  return uid == 0 || ((attr.mode >> shift) & rights) == rights;
}

bool Allows(const meta::Attr& attr, const Credentials& caller, uint32_t rights) {
  const bool is_member =
      caller.gid == attr.gid || std::find(caller.groups.begin(), caller.groups.end(), attr.gid) != caller.groups.end();
  return Allows(attr, caller.uid, is_member, rights);
}

bool Allows(const meta::Attr& attr, const Caller& caller, uint32_t rights) {
  const bool is_member = caller.gid == attr.gid || (caller.is_in_group && caller.is_in_group(attr.gid));
  return Allows(attr, caller.uid, is_member, rights);
}

// Whether the caller has the rights to the directory and to each above it.
Result<bool> AllowAllAbove(const Context& context, meta::Namespace& names, const Credentials& caller, InodeId directory,
                           uint32_t rights) {
  for (size_t level = 0; level < kLevelsJudgedMax; ++level) {
    CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr attr, names.GetAttr(context, directory));
    if (!Allows(attr, caller, rights)) return false;
    if (directory == kRootInode) return true;
    CAIRNFS_ASSIGN_OR_RETURN(directory, names.ParentOf(context, directory));
  }
  return MakeError(ErrorCode::kTooLarge, "it lies too deep below the root");
}

Error Denied(const std::string& what) { return MakeError(ErrorCode::kPermission, "Permission denied: " + what); }

}  // namespace

Status CheckMayOpen(const Credentials& caller, const meta::Attr& attr, const OpenFlags& flags) {
  const uint32_t rights = (flags.read ? kRead : 0) | (flags.write || flags.truncate ? kWrite : 0);
  return Allows(attr, caller, rights) ? Status() : Denied("the file's mode does not let you open it so");
}

Status CheckMayReplace(const Credentials& caller, const meta::Attr& directory, std::optional<uint32_t> owner) {
  if (!Allows(directory, caller, kWrite | kSearch)) return Denied("you may not change the names in the directory");
  const bool is_sticky = (directory.mode & S_ISVTX) != 0;
  const bool is_anothers = owner && caller.uid != *owner && caller.uid != directory.uid;
  if (is_sticky && is_anothers && caller.uid != 0) {
    return Denied("it is another user's, in a directory with the sticky bit");
  }
  return {};
}

Status CheckMayRename(const Context& context, meta::Namespace& names, const Credentials& caller, InodeId directory,
                      InodeId final_parent) {
  CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr moved, names.GetAttr(context, directory));
  if (!S_ISDIR(moved.mode)) return MakeError(ErrorCode::kNotDirectory, "only directories are committed");
  CAIRNFS_ASSIGN_OR_RETURN(const InodeId parent_id, names.ParentOf(context, directory));
  CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr parent, names.GetAttr(context, parent_id));
  CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr target, names.GetAttr(context, final_parent));
  if (!S_ISDIR(target.mode)) return MakeError(ErrorCode::kNotDirectory, "the final name does not lie in a directory");
  if (!Allows(parent, caller, kWrite | kSearch)) {
    return Denied("you may not change the names in the directory that it lies in");
  }
  if ((parent.mode & S_ISVTX) != 0 && caller.uid != 0 && caller.uid != parent.uid && caller.uid != moved.uid) {
    return Denied("it is another user's, in a directory with the sticky bit");
  }
  if (parent_id == final_parent) return {};
  if (!Allows(target, caller, kWrite | kSearch)) {
    return Denied("you may not change the names in the directory that it is to lie in");
  }
  // Its entry ".." changes.
  if (!Allows(moved, caller, kWrite)) return Denied("you may not write to the directory itself");
  return {};
}

Status CheckMayEnter(const Context& context, meta::Namespace& names, const Credentials& caller, InodeId directory) {
  CAIRNFS_ASSIGN_OR_RETURN(const bool may, AllowAllAbove(context, names, caller, directory, kSearch));
  return may ? Status() : Status(Denied("you may not enter a directory on the way from the root of the filesystem"));
}

bool MayListAbove(const Context& context, meta::Namespace& names, const Credentials& caller, InodeId directory) {
  const auto may = AllowAllAbove(context, names, caller, directory, kRead | kSearch);
  return may.ok() && *may;
}

bool MayFindBelow(const Context& context, meta::Namespace& names, const Caller& caller, InodeId directory,
                  std::string_view path) {
  auto attr = names.GetAttr(context, directory);
  while (attr.ok() && S_ISDIR(attr->mode) && Allows(*attr, caller, kRead | kSearch)) {
    const size_t length = path.find('/');
    attr = names.Lookup(context, attr->inode, path.substr(0, length));
    if (length == std::string_view::npos) return attr.ok();
    path.remove_prefix(length + 1);
  }
  return false;
}

Status CheckMayName(const Context& context, meta::Namespace& names, const Credentials& caller, InodeId inode,
                    InodeId lay_in, InodeId directory) {
  CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr named, names.GetAttr(context, inode));
  const bool changes_parent = S_ISDIR(named.mode) && lay_in != directory;
  if (changes_parent && !Allows(named, caller, kWrite)) return Denied("you may not write to the directory itself");
  CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr target, names.GetAttr(context, directory));
  if (!S_ISDIR(target.mode)) return MakeError(ErrorCode::kNotDirectory, "the new name does not lie in a directory");
  if (target.nlink == 0) return MakeError(ErrorCode::kNotFound, "the directory is removed");
  if (!Allows(target, caller, kWrite)) return Denied("you may not change the names in that directory");
  return CheckMayEnter(context, names, caller, directory);
}

}  // namespace cairnfs::fs
