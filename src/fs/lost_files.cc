#include "fs/lost_files.h"

#include <sys/stat.h>

#include <optional>
#include <utility>
#include <vector>

namespace cairnfs::fs {

void LostFiles::Note(const InodePtr& inode) {
  if (inode->unlinked) return;
  MutexLock lock(mutex_);
  // Held for as long as it has lost bytes: they are remembered nowhere else.
  if (inodes_.insert(inode->id).second) table_.Hold(inode->id);
}

void LostFiles::Forget(InodeId id) {
  {
    MutexLock lock(mutex_);
    if (inodes_.erase(id) == 0) return;  // somebody else did
  }
  if (InodePtr inode = table_.Find(id)) table_.Unhold(inode);
}

void LostFiles::NoteDroppedFromNow() {
  MutexLock lock(mutex_);
  notes_dropped_ = true;
}

void LostFiles::NoteDropped(InodeId id, uint64_t bytes) {
  MutexLock lock(mutex_);
  if (notes_dropped_) dropped_[id] += bytes;
}

std::map<InodeId, uint64_t> LostFiles::Dropped() {
  MutexLock lock(mutex_);
  return dropped_;
}

std::set<InodeId> LostFiles::Inodes() {
  std::set<InodeId> known;
  {
    MutexLock lock(mutex_);
    known = inodes_;
  }
  for (InodeId id : std::set<InodeId>(known)) {
    InodePtr inode = table_.Find(id);
    bool forgotten = false;
    if (inode) {
      MutexLock lock(inode->mutex);
      if (inode->content && !inode->content->lost.empty() && !inode->unlinked) continue;
      MutexLock list(mutex_);
      forgotten = inodes_.erase(id) > 0;  // if not, somebody else did
    }
    known.erase(id);
    if (forgotten) table_.Unhold(inode);
  }
  return known;
}

Result<std::map<InodeId, std::string>> FindNames(const Context& context, meta::Namespace& names, InodeId directory,
                                                 std::set<InodeId> inodes) {
  std::map<InodeId, std::string> found;
  std::vector<std::pair<InodeId, std::string>> todo{{directory, ""}};
  while (!todo.empty() && !inodes.empty()) {
    const auto [at, path] = std::move(todo.back());
    todo.pop_back();
    CAIRNFS_RETURN_IF_ERROR(
        names.VisitDirectory(context, at, [&, &above = path](std::string_view name, InodeId inode, uint32_t type) {
          const std::string below = above + std::string(name);
          if (inodes.erase(inode) > 0) found.emplace(inode, below);
          if (type == S_IFDIR) todo.emplace_back(inode, below + "/");
        }));
  }
  return found;
}

Result<std::map<InodeId, std::string>> FindMoved(const Context& context, meta::Namespace& names,
                                                 const meta::RenameParams& params, const std::set<InodeId>& inodes) {
  std::map<InodeId, std::string> found;
  if (inodes.empty()) return found;
  if (params.unnamed) {
    if (inodes.contains(*params.unnamed)) found.emplace(*params.unnamed, params.to_name);
    return found;
  }
  const auto find = [&](InodeId parent, const std::string& name) -> Status {
    CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr attr, names.Lookup(context, parent, name));
    std::map<InodeId, std::string> below;
    if (inodes.contains(attr.inode)) below.emplace(attr.inode, "");
    if (S_ISDIR(attr.mode)) {
      CAIRNFS_ASSIGN_OR_RETURN(below, FindNames(context, names, attr.inode, inodes));
    }
    if (below.empty()) return {};
    const std::string above = names.PathOf(context, parent, name);
    for (const auto& [inode, path] : below) found.emplace(inode, path.empty() ? above : above + "/" + path);
    return {};
  };
  CAIRNFS_RETURN_IF_ERROR(find(params.from_parent, params.from_name));
  if (params.mode == meta::RenameMode::kExchange) CAIRNFS_RETURN_IF_ERROR(find(params.to_parent, params.to_name));
  return found;
}

Result<std::vector<meta::RefusalCause>> LostFiles::FindMoved(const Context& context, const meta::RenameParams& params) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto found, fs::FindMoved(context, names_, params, Inodes()));
  std::vector<meta::RefusalCause> causes;
  for (const auto& [inode, path] : found) {
    causes.push_back(
        {.file = path, .why = "bytes could not be stored and are lost: write the file again or remove it"});
  }
  return causes;
}

}  // namespace cairnfs::fs
