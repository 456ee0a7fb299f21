#include "fs/names.h"

#include <sys/stat.h>

#include <utility>
#include <vector>

#include "fs/permissions.h"

namespace cairnfs::fs {

// For handles of files that outlive the kernel's memory of them (name_to_handle_at, NFS).
Result<meta::Attr> Names::LookUpInode(const Context& context, InodeId id) {
  // First: should its last name go from here on, it stays until it is forgotten.
  at_.table.AddLookup(id);
  Result<meta::Attr> attr = at_.sharing.ReadAttr([&] { return at_.parts.names.GetAttr(context, id); });
  if (attr.ok() && attr->nlink > 0) return attr;
  at_.table.Forget(id, 1);
  if (!attr.ok()) return attr;
  return MakeError(ErrorCode::kNotFound, "inode " + std::to_string(id.value) + " is removed");
}

Result<meta::Attr> Names::Lookup(const Context& context, InodeId parent, std::string_view name) {
  if (name == ".") return LookUpInode(context, parent);
  if (name == "..") {
    CAIRNFS_ASSIGN_OR_RETURN(const InodeId above, at_.parts.names.ParentOf(context, parent));
    return LookUpInode(context, above);
  }
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr,
                           at_.sharing.ReadAttr([&] { return at_.parts.names.Lookup(context, parent, name); }));
  at_.table.AddLookup(attr.inode)->directory = parent.value;
  return attr;
}

Result<meta::Attr> Names::GetAttr(const Context& context, InodeId inode) {
  return at_.sharing.ReadAttr([&] { return at_.parts.names.GetAttr(context, inode); });
}

Result<meta::Attr> Names::MakeNode(const Context& context, InodeId parent, std::string_view name,
                                   const meta::CreateParams& params) {
  SyncRounds::Operation operation(at_.rounds);
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, at_.parts.names.Create(context, parent, name, params));
  at_.totals.NoteMade();
  at_.table.AddLookup(attr.inode)->directory = parent.value;
  return attr;
}

Result<meta::Attr> Names::LinkNow(const Caller& caller, InodeId inode, InodeId new_parent, std::string_view new_name) {
  SyncRounds::Operation operation(at_.rounds);
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr,
                           at_.parts.names.Link(caller.context, inode, new_parent, new_name, caller.uid));
  at_.table.AddLookup(attr.inode);
  return GetAttr(caller.context, inode);
}

void Names::Link(InodeId inode, InodeId new_parent, std::string_view new_name, Done<meta::Attr> done,
                 const Caller& caller) {
  auto link = [this, inode, new_parent, name = std::string(new_name), caller,
               done = std::move(done)](const Status& covered) {
    if (!covered.ok()) return done(covered.error());
    done(LinkNow(caller, inode, new_parent, name));
  };
  at_.copies.WhenCovered(inode, new_parent, caller, std::move(link));
}

Status Names::Unlink(const Context& context, InodeId parent, std::string_view name) {
  SyncRounds::Operation operation(at_.rounds);
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, at_.parts.names.Unlink(context, parent, name));
  changes_.NoteRemoved(attr);
  return {};
}

Status Names::Rmdir(const Context& context, InodeId parent, std::string_view name) {
  SyncRounds::Operation operation(at_.rounds);
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, at_.parts.names.Rmdir(context, parent, name));
  changes_.NoteRemoved(attr);
  return {};
}

Status Names::CheckMayRename(const Context& context, const Credentials& caller, InodeId directory,
                             InodeId final_parent) {
  return fs::CheckMayRename(context, at_.parts.names, caller, directory, final_parent);
}

Status Names::VisitFilesBelow(const Context& context, InodeId directory,
                              const std::function<void(std::string_view name)>& visit) {
  std::vector<InodeId> directories{directory};
  size_t visited = 0;
  while (!directories.empty()) {
    const InodeId next = directories.back();
    directories.pop_back();
    const auto add = [&](std::string_view name, InodeId inode, uint32_t type) {
      ++visited;
      if (type == S_IFDIR) directories.push_back(inode);
      if (type == S_IFREG) visit(name);
    };
    const Status read = at_.parts.names.VisitDirectory(context, next, add);
    if (!read.ok() && read.error().code != ErrorCode::kNotFound) return read;  // one below may be removed meanwhile
    if (context.Expired()) return MakeError(ErrorCode::kInterrupted, "the caller is gone");
    if (visited > kVisitedMax) {
      return MakeError(ErrorCode::kTooLarge,
                       "more than " + std::to_string(kVisitedMax) + " names lie below the directory");
    }
  }
  return {};
}

Result<bool> Names::HasName(const Context& context, InodeId directory, InodeId parent, std::string_view name) {
  auto found = at_.parts.names.Lookup(context, parent, name);
  if (!found.ok() && found.error().code == ErrorCode::kNotFound) return false;
  if (!found.ok()) return found.error();
  return found->inode == directory;
}

}  // namespace cairnfs::fs
