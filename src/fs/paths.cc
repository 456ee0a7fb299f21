#include "fs/paths.h"

#include <optional>

#include "base/coding.h"
#include "fs/scan.h"
#include "meta/records.h"

namespace cairnfs::fs {
namespace {

constexpr size_t kLevelsMax = 4096;

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

Status FindNames(kv::KvStore& kv, const std::string& prefix, const std::set<InodeId>& inodes,
                 const std::stop_token& stop, NamesFound& found) {
  size_t missing = inodes.size();
  return ScanPrefix(kv, prefix, stop, [&](const kv::KvEntry& entry) {
    auto dentry = meta::DentryRecord::Decode(entry.value);
    if (!dentry.ok() || !inodes.contains(dentry->inode)) return true;
    if (auto name = NameOfKey(entry.key); name && found.emplace(dentry->inode, *name).second) missing--;
    return missing > 0;
  });
}

// The directories above those found, each below its parent.
std::map<InodeId, std::set<InodeId>> DirectoriesAbove(meta::Namespace& names, const NamesFound& found) {
  std::map<InodeId, std::set<InodeId>> children;
  std::set<InodeId> seen;
  for (const auto& [inode, name] : found) {
    for (InodeId current = name.parent; current != kRootInode && seen.insert(current).second;) {
      auto above = names.ParentOf(current);
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

Result<std::map<InodeId, std::string>> FindPaths(kv::KvStore& kv, meta::Namespace& names,
                                                 const std::set<InodeId>& inodes, const std::stop_token& stop) {
  std::map<InodeId, std::string> paths;
  if (inodes.empty()) return paths;
  NamesFound found;
  CAIRNFS_RETURN_IF_ERROR(FindNames(kv, "E", inodes, stop, found));
  for (const auto& [parent, children] : DirectoriesAbove(names, found)) {
    CAIRNFS_RETURN_IF_ERROR(FindNames(kv, meta::DentryPrefix(parent), children, stop, found));
  }
  for (InodeId inode : inodes) {
    if (inode == kRootInode) paths[inode] = "/";
    if (found.contains(inode)) paths[inode] = PathOf(found, inode);
  }
  return paths;
}

}  // namespace cairnfs::fs
