#include "fs/names.h"

#include <sys/stat.h>

#include <utility>

#include "fs/permissions.h"

namespace cairnfs::fs {

// For handles of files that outlive the kernel's memory of them (name_to_handle_at, NFS).
Result<meta::Attr> Names::LookUpInode(InodeId id) {
  // First: should its last name go from here on, it stays until it is forgotten.
  at_.table.AddLookup(id);
  Result<meta::Attr> attr = at_.sharing.ReadAttr([&] { return at_.parts.names.GetAttr(id); });
  if (attr.ok() && attr->nlink > 0) return attr;
  at_.table.Forget(id, 1);
  if (!attr.ok()) return attr;
  return MakeError(ErrorCode::kNotFound, "inode " + std::to_string(id.value) + " is removed");
}

Result<meta::Attr> Names::Lookup(InodeId parent, std::string_view name) {
  if (name == ".") return LookUpInode(parent);
  if (name == "..") {
    CAIRNFS_ASSIGN_OR_RETURN(const InodeId above, at_.parts.names.ParentOf(parent));
    return LookUpInode(above);
  }
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, at_.sharing.ReadAttr([&] { return at_.parts.names.Lookup(parent, name); }));
  at_.table.AddLookup(attr.inode);
  return attr;
}

Result<meta::Attr> Names::GetAttr(InodeId inode) {
  return at_.sharing.ReadAttr([&] { return at_.parts.names.GetAttr(inode); });
}

Result<meta::Attr> Names::MakeNode(InodeId parent, std::string_view name, const meta::CreateParams& params) {
  SyncRounds::Operation operation(at_.rounds);
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, at_.parts.names.Create(parent, name, params));
  at_.totals.NoteMade();
  at_.table.AddLookup(attr.inode);
  return attr;
}

Result<meta::Attr> Names::LinkNow(InodeId inode, InodeId new_parent, std::string_view new_name) {
  SyncRounds::Operation operation(at_.rounds);
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, at_.parts.names.Link(inode, new_parent, new_name));
  at_.table.AddLookup(attr.inode);
  return GetAttr(inode);
}

void Names::Link(InodeId inode, InodeId new_parent, std::string_view new_name, Done<meta::Attr> done,
                 const Caller& caller) {
  auto link = [this, inode, new_parent, name = std::string(new_name), done = std::move(done)](const Status& covered) {
    if (!covered.ok()) return done(covered.error());
    done(LinkNow(inode, new_parent, name));
  };
  at_.copies.WhenCovered(inode, new_parent, caller, std::move(link));
}

Status Names::Unlink(InodeId parent, std::string_view name) {
  SyncRounds::Operation operation(at_.rounds);
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, at_.parts.names.Unlink(parent, name));
  changes_.NoteRemoved(attr);
  return {};
}

Status Names::Rmdir(InodeId parent, std::string_view name) {
  SyncRounds::Operation operation(at_.rounds);
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, at_.parts.names.Rmdir(parent, name));
  changes_.NoteRemoved(attr);
  return {};
}

Status Names::CheckMayRename(const Credentials& caller, InodeId directory, InodeId final_parent) {
  return fs::CheckMayRename(at_.parts.names, caller, directory, final_parent);
}

Result<bool> Names::HasName(InodeId directory, InodeId parent, std::string_view name) {
  auto found = at_.parts.names.Lookup(parent, name);
  if (!found.ok() && found.error().code == ErrorCode::kNotFound) return false;
  if (!found.ok()) return found.error();
  return found->inode == directory;
}

}  // namespace cairnfs::fs
