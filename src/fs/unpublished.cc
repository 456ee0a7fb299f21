#include "fs/unpublished.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>

#include "fs/lost_files.h"

namespace cairnfs::fs {

// FindBelow names what may lie there, which is right for what is waited for, and not for what a commit fails for.
Result<std::set<InodeId>> Unpublished::LyingBelow(const Context& context, const std::vector<meta::Attr>& sources,
                                                  const std::vector<InodeId>& inodes) {
  std::set<InodeId> directories, below, candidates, unknown;
  if (inodes.empty()) return below;
  for (const meta::Attr& attr : sources) {
    if (std::find(inodes.begin(), inodes.end(), attr.inode) != inodes.end()) below.insert(attr.inode);
    if (!S_ISDIR(attr.mode)) continue;
    directories.insert(attr.inode);
    CAIRNFS_ASSIGN_OR_RETURN(const std::vector<InodeId> found, names_.FindBelow(context, attr.inode, inodes));
    candidates.insert(found.begin(), found.end());
  }
  if (candidates.empty()) return below;
  const std::vector<InodeId> asked(candidates.begin(), candidates.end());
  CAIRNFS_ASSIGN_OR_RETURN(const auto nearest, names_.FindNearest(context, directories, asked));
  for (size_t i = 0; i < asked.size(); i++) {
    if (nearest[i] && nearest[i]->value != 0) below.insert(asked[i]);
    if (!nearest[i]) unknown.insert(asked[i]);
  }
  for (InodeId directory : directories) {
    if (unknown.empty()) break;
    CAIRNFS_ASSIGN_OR_RETURN(const auto found, FindNames(context, names_, directory, unknown));
    for (const auto& [inode, path] : found) below.insert(inode);
  }
  return below;
}

Result<std::vector<meta::Namespace::MarkedFile>> Unpublished::MarksOf(const Context& context,
                                                                      const std::vector<meta::Attr>& sources) {
  const auto is_directory = [](const meta::Attr& attr) { return S_ISDIR(attr.mode); };
  if (std::any_of(sources.begin(), sources.end(), is_directory)) return names_.ListMarks(context);
  std::vector<meta::Namespace::MarkedFile> marked;
  for (const meta::Attr& attr : sources) {
    for (const meta::Mark& mark : attr.marks) marked.push_back({attr.inode, mark});
  }
  return marked;
}

// A host that has died keeps its session for a lease. Only where one of its files lies there is that waited for.
Result<std::vector<meta::Mark>> Unpublished::TakeLive(const Context& context, const std::vector<meta::Attr>& sources,
                                                      std::vector<meta::Namespace::MarkedFile>& marked) {
  const auto is_written = [this](const auto& file) {
    return host_.Lives(file.mark) && (host_.IsOwn(file.mark) || file.mark.record.failure.empty());
  };
  std::vector<InodeId> written;
  for (const auto& file : marked) {
    if (!host_.IsOwn(file.mark) && is_written(file)) written.push_back(file.inode);
  }
  CAIRNFS_ASSIGN_OR_RETURN(const std::set<InodeId> below, LyingBelow(context, sources, written));
  std::map<std::string, meta::Mark> hosts;
  for (const auto& file : marked) {
    const bool counts = below.contains(file.inode) && !host_.IsOwn(file.mark) && is_written(file);
    if (counts) hosts.emplace(file.mark.node, file.mark);
  }
  std::vector<meta::Mark> live;
  for (const auto& [node, mark] : hosts) {
    CAIRNFS_RETURN_IF_ERROR(host_.AwaitWord(context, mark));
    if (host_.Lives(mark)) live.push_back(mark);
  }
  std::erase_if(marked, is_written);
  return live;
}

// What this host was to publish the round before has published, or failed to.
Result<Unpublished::Found> Unpublished::Find(const Context& context, const std::vector<meta::Attr>& sources) {
  Found found;
  const std::map<InodeId, Error> failed = rounds_.FailedFiles();
  std::vector<InodeId> inodes;
  for (const auto& [inode, why] : failed) inodes.push_back(inode);
  CAIRNFS_ASSIGN_OR_RETURN(auto marked, MarksOf(context, sources));
  CAIRNFS_ASSIGN_OR_RETURN(found.live, TakeLive(context, sources, marked));
  for (const auto& file : marked) inodes.push_back(file.inode);
  CAIRNFS_ASSIGN_OR_RETURN(const std::set<InodeId> below, LyingBelow(context, sources, inodes));
  const auto add_cause = [&](InodeId inode, std::string_view node, const std::string& why) {
    if (!below.contains(inode)) return;
    found.causes.push_back({.file = names_.PathOfInode(context, inode), .host = host_.NameOf(node), .why = why});
  };
  for (const auto& [inode, why] : failed) add_cause(inode, host_.self(), why.message);
  for (const auto& [inode, mark] : marked) {
    const bool is_lost = !host_.Lives(mark);
    add_cause(inode, mark.node,
              is_lost ? "the host was lost before its bytes were safe: write the file again, truncate or remove it"
                      : mark.record.failure);
  }
  return found;
}

}  // namespace cairnfs::fs
