#include "fs/names.h"

#include <sys/stat.h>

#include <utility>
#include <vector>

#include "fs/permissions.h"
#include "retention/values.h"

namespace cairnfs::fs {

// For handles of files that outlive the kernel's memory of them (name_to_handle_at, NFS).
Result<meta::Attr> Names::LookUpInode(const Context& context, InodeId id) {
  // First: should its last name go from here on, it stays until it is forgotten.
  const InodePtr inode = at_.table.AddLookup(id);
  Result<meta::Attr> attr = at_.sharing.ReadAttr([&] { return at_.parts.names.GetAttr(context, id); });
  if (attr.ok() && attr->nlink > 0) {
    attr->generation = inode->generation;
    return attr;
  }
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
  const InodePtr inode = at_.table.AddLookup(attr.inode);
  inode->directory = parent.value;
  inode->in_trash = false;
  attr.generation = inode->generation;
  return attr;
}

Result<meta::Attr> Names::GetAttr(const Context& context, InodeId inode) {
  return at_.sharing.ReadAttr([&] { return at_.parts.names.GetAttr(context, inode); });
}

Result<meta::Attr> Names::MakeNode(const Context& context, InodeId parent, std::string_view name,
                                   const meta::CreateParams& params) {
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, at_.room.OnceThereIsRoom([&] {
    SyncRounds::Operation operation(at_.rounds);
    return at_.parts.names.Create(context, parent, name, params);
  }));
  at_.totals.NoteMade();
  at_.table.AddLookup(attr.inode)->directory = parent.value;
  return attr;
}

Result<meta::Attr> Names::LinkNow(const Caller& caller, InodeId inode, InodeId new_parent, std::string_view new_name) {
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, at_.room.OnceThereIsRoom([&] {
    SyncRounds::Operation operation(at_.rounds);
    return at_.parts.names.Link(caller.context, inode, new_parent, new_name, caller.uid);
  }));
  at_.table.AddLookup(attr.inode);
  return GetAttr(caller.context, inode);
}

void Names::Link(InodeId inode, InodeId new_parent, std::string_view new_name, Done<meta::Attr> done,
                 const Caller& caller) {
  auto link = [this, inode, new_parent, name = std::string(new_name), caller,
               done = std::move(done)](const Status& covered) {
    if (!covered.ok()) return done(covered.error());
    OnceSealsAreKnown(at_, inode, caller, [this, caller, inode, new_parent, name, done](const Status& may) {
      done(may.ok() ? LinkNow(caller, inode, new_parent, name) : Result<meta::Attr>(may.error()));
    });
  };
  at_.copies.WhenCovered(inode, new_parent, caller, std::move(link));
}

// What is removed under that name goes to the trash, or not.
std::optional<meta::TrashParams> Names::TrashFor(const Context& context, InodeId parent, std::string_view name,
                                                 uint32_t uid) {
  std::optional<meta::TrashParams> trash = at_.trash.For(uid, name);
  if (!trash) return trash;
  // Its record would take room that is kept for removing: it goes for good.
  if (!trash->by_retention && at_.room.LacksNames()) return std::nullopt;
  const auto removed = at_.sharing.ReadAttr([&] { return at_.parts.names.Lookup(context, parent, name); });
  if (removed.ok() && !S_ISDIR(removed->mode)) trash->held = {.files = 1, .bytes = removed->allocated_bytes};
  return trash;
}

Status Names::Unlink(const Context& context, InodeId parent, std::string_view name, uint32_t uid) {
  const auto trash = TrashFor(context, parent, name, uid);
  SyncRounds::Operation operation(at_.rounds);
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, at_.parts.names.Unlink(context, parent, name, trash));
  if (attr.in_trash) attr.allocated_bytes = trash->held.bytes;
  changes_.NoteRemoved(attr);
  return {};
}

Status Names::Rmdir(const Context& context, InodeId parent, std::string_view name, uint32_t uid) {
  std::optional<meta::TrashParams> trash = at_.trash.For(uid, name);
  if (trash && !trash->by_retention && at_.room.LacksNames()) trash.reset();
  std::function<Status(InodeId)> check;
  if (trash && trash->by_retention) {
    CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr directory, at_.parts.names.Lookup(context, parent, name));
    if (!S_ISDIR(directory.mode)) return MakeError(ErrorCode::kNotDirectory, "it is no directory");
    // One whose removal has begun is removed entry by entry: something may be to stay inside.
    const Status unmarked = at_.keeping.CheckHasNoMark(context, directory.inode);
    const bool is_marked = !unmarked.ok() && unmarked.error().code == ErrorCode::kBusy;
    if (is_marked) return RmdirNow(context, parent, name, {}, {});
    if (!unmarked.ok()) return unmarked;
    const auto held = at_.trash.Measure(context, uid, directory.inode);
    if (!held.ok() && held.error().code == ErrorCode::kNotEmpty) return RmdirNow(context, parent, name, trash, {});
    if (!held.ok()) return held.error();
    trash->whole = true;
    trash->held = *held;
    check = [this, &context, id = directory.inode](InodeId named) -> Status {
      if (named != id) return MakeError(ErrorCode::kStale, "another one has that name by now");
      CAIRNFS_RETURN_IF_ERROR(at_.keeping.CheckHasNoMark(context, named));
      return at_.keeping.CheckMayGo(context, named);
    };
  }
  return RmdirNow(context, parent, name, trash, check);
}

Status Names::RmdirNow(const Context& context, InodeId parent, std::string_view name,
                       const std::optional<meta::TrashParams>& trash, const std::function<Status(InodeId)>& check) {
  SyncRounds::Operation operation(at_.rounds);
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, at_.parts.names.Rmdir(context, parent, name, trash, check));
  if (attr.in_trash) attr.allocated_bytes = trash->held.bytes;
  changes_.NoteRemoved(attr);
  return {};
}

void Names::Rmdir(InodeId parent, const std::string& name, const Caller& caller, Done<void> done) {
  auto remove = [this, parent, name, caller, done] { done(Rmdir(caller.context, parent, name, caller.uid)); };
  if (!retention::IsGoingName(name)) return remove();
  at_.calls.RunToWait(caller, std::move(remove), [done](const Status& refused) { done(refused); });
}

void Names::WhenAdmitted(NameChange change, Done<void> go, const Caller& caller) {
  changes_.WhenAdmitted(change, caller, std::move(go));
}

void Names::Rename(const meta::RenameParams& params, const Caller& caller, Done<void> done) {
  meta::RenameParams with_trash = params;
  with_trash.trash = TrashFor(caller.context, params.to_parent, params.to_name, caller.uid);
  // A lack of room is told only once the trash is empty.
  auto told = [this, params, caller, emptyings = at_.room.emptyings(), done = std::move(done)](const Status& status) {
    const bool lacks_room = !status.ok() && status.error().code == ErrorCode::kNoSpace;
    auto again = [this, params, caller, done, status](bool has_made) {
      if (has_made) return Rename(params, caller, done);
      done(status);
    };
    if (!lacks_room || !at_.room.EmptyTrashThen(emptyings, std::move(again))) done(status);
  };
  changes_.Rename(with_trash, caller, std::move(told));
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
