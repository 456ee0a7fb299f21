#include "fs/paths.h"

#include <optional>

#include "base/coding.h"
#include "fs/scan.h"
#include "meta/records.h"

namespace cairnfs::fs {
namespace {

constexpr size_t kLevelsMax = 4096;
constexpr size_t kPathLevelsMax = 256;
constexpr size_t kEntriesSearchedMax = 200'000;  // of one directory on the way

struct Name {
  InodeId parent;
  std::string name;
};
using NamesFound = std::map<InodeId, Name>;

std::optional<Name> NameOfKey(std::string_view key) {
  Decoder decoder(key.substr(1));
  InodeId parent{decoder.BigEndianU64()};
  if (!decoder.ok()) return std::nullopt;
  return Name{parent, std::string(decoder.Rest())};
}

Status FindNames(const Context& context, kv::KvStore& kv, const std::string& prefix, const std::set<InodeId>& inodes,
                 NamesFound& found) {
  size_t missing = inodes.size();
  return ScanPrefix(context, kv, prefix, [&](const kv::KvEntry& entry) {
    auto dentry = meta::DentryRecord::Decode(entry.value);
    if (!dentry.ok() || !inodes.contains(dentry->inode)) return true;
    if (auto name = NameOfKey(entry.key); name && found.emplace(dentry->inode, *name).second) missing--;
    return missing > 0;
  });
}

// The directories above those found, each below its parent.
std::map<InodeId, std::set<InodeId>> DirectoriesAbove(const Context& context, meta::Namespace& names,
                                                      const NamesFound& found) {
  std::map<InodeId, std::set<InodeId>> children;
  std::set<InodeId> seen;
  for (const auto& [inode, name] : found) {
    for (InodeId current = name.parent; current != kRootInode && seen.insert(current).second;) {
      auto above = names.ParentOf(context, current);
      if (!above.ok()) break;
      children[*above].insert(current);
      current = *above;
    }
  }
  return children;
}

std::string PathOf(const NamesFound& found, InodeId inode) {
  std::string path;
  for (size_t level = 0; inode != kRootInode && level < kLevelsMax; level++) {
    auto name = found.find(inode);
    if (!path.empty()) path.insert(0, "/");
    if (name == found.end()) return "#" + std::to_string(inode.value) + path;
    path.insert(0, name->second.name);
    inode = name->second.parent;
  }
  return path;
}

}  // namespace

Status FindPaths(const Context& context, kv::KvStore& kv, meta::Namespace& names, const std::set<InodeId>& inodes,
                 std::map<InodeId, std::string>& paths) {
  if (inodes.empty()) return {};
  NamesFound found;
  Status status = FindNames(context, kv, "E", inodes, found);
  if (status.ok()) {
    for (const auto& [parent, children] : DirectoriesAbove(context, names, found)) {
      status = FindNames(context, kv, meta::DentryPrefix(parent), children, found);
      if (!status.ok()) break;
    }
  }
  for (InodeId inode : inodes) {
    if (inode == kRootInode) paths[inode] = "/";
    if (found.contains(inode)) paths[inode] = PathOf(found, inode);
  }
  return status;
}

Result<std::map<InodeId, std::string>> FindPaths(const Context& context, kv::KvStore& kv, meta::Namespace& names,
                                                 const std::set<InodeId>& inodes) {
  std::map<InodeId, std::string> paths;
  CAIRNFS_RETURN_IF_ERROR(FindPaths(context, kv, names, inodes, paths));
  return paths;
}

Result<std::string> PathBelowRoot(const Context& context, meta::Namespace& names, InodeId directory) {
  std::string path;
  InodeId current = directory;
  for (size_t level = 0; current != kRootInode; ++level) {
    if (level == kPathLevelsMax) return MakeError(ErrorCode::kTooLarge, "it lies too deep below the root");
    CAIRNFS_ASSIGN_OR_RETURN(const InodeId parent, names.ParentOf(context, current));
    CAIRNFS_ASSIGN_OR_RETURN(const std::string name, names.NameIn(context, parent, current, kEntriesSearchedMax));
    path = path.empty() ? name : name + "/" + path;
    current = parent;
  }
  return path;
}

}  // namespace cairnfs::fs
