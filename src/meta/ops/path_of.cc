#include "meta/access.h"

namespace cairnfs::meta {
namespace {

constexpr int kPathLevelsMax = 64;
constexpr size_t kEntriesSearchedMax = 10000;

// The name that leads to `child` in `parent`, or "#" and its number. Entries are not indexed by inode, and a huge
// directory is not read for a message.
std::string NameOf(const Context& context, Namespace& names, InodeId parent, InodeId child) {
  auto entries = names.ReadDirectory(context, parent, "", kEntriesSearchedMax);
  if (entries.ok()) {
    for (const DirectoryEntry& entry : *entries) {
      if (entry.inode == child) return entry.name;
    }
  }
  return "#" + std::to_string(child.value);
}

}  // namespace

std::string Namespace::PathOfInode(const Context& context, InodeId inode) {
  auto loaded = LoadInode(context, store_, inode);
  if (inode == kRootInode) return "/";
  if (!loaded.ok() || loaded->record.parent.value == 0) return "#" + std::to_string(inode.value);
  return PathOf(context, loaded->record.parent, NameOf(context, *this, loaded->record.parent, inode));
}

std::string Namespace::PathOf(const Context& context, InodeId parent, std::string_view name) {
  std::string path(name);
  InodeId current = parent;
  for (int level = 0; current != kRootInode; level++) {
    auto above = ParentOf(context, current);
    if (!above.ok() || level == kPathLevelsMax) return "#" + std::to_string(current.value) + "/" + path;
    path = NameOf(context, *this, *above, current) + "/" + path;
    current = *above;
  }
  return path;
}

}  // namespace cairnfs::meta
