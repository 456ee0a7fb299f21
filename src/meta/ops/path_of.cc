#include <algorithm>

#include "meta/access.h"

namespace cairnfs::meta {
namespace {

constexpr int kPathLevelsMax = 64;
constexpr size_t kEntriesPerPage = 1024;

// Huge directories are not read for a message.
std::string NameOrNumber(const Context& context, Namespace& names, InodeId parent, InodeId child) {
  auto name = names.NameIn(context, parent, child);
  return name.ok() ? *name : "#" + std::to_string(child.value);
}

}  // namespace

Result<std::string> Namespace::NameIn(const Context& context, InodeId parent, InodeId child, size_t entries_max) {
  std::string after;
  for (size_t left = entries_max; left > 0;) {
    CAIRNFS_ASSIGN_OR_RETURN(const auto entries,
                             ReadDirectory(context, parent, after, std::min(left, kEntriesPerPage)));
    if (entries.empty()) return MakeError(ErrorCode::kNotFound, "it is moved or removed just now");
    for (const DirectoryEntry& entry : entries) {
      if (entry.inode == child) return entry.name;
    }
    left -= std::min(left, entries.size());
    after = entries.back().name;
    if (context.Expired()) return MakeError(ErrorCode::kInterrupted, "the search for its path was ended");
  }
  return MakeError(ErrorCode::kTooLarge, "a directory above it has too many names to find the one that leads to it");
}

std::string Namespace::PathOfInode(const Context& context, InodeId inode) {
  auto loaded = LoadInode(context, store_, inode);
  if (inode == kRootInode) return "/";
  if (!loaded.ok() || loaded->record.parent.value == 0) return "#" + std::to_string(inode.value);
  return PathOf(context, loaded->record.parent, NameOrNumber(context, *this, loaded->record.parent, inode));
}

std::string Namespace::PathOf(const Context& context, InodeId parent, std::string_view name) {
  std::string path(name);
  InodeId current = parent;
  for (int level = 0; current != kRootInode; level++) {
    auto above = ParentOf(context, current);
    if (!above.ok() || level == kPathLevelsMax) return "#" + std::to_string(current.value) + "/" + path;
    path = NameOrNumber(context, *this, *above, current) + "/" + path;
    current = *above;
  }
  return path;
}

}  // namespace cairnfs::meta
