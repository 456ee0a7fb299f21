#include "fs/findings.h"

namespace cairnfs::fs {

void Findings::Add(std::string what, std::optional<InodeId> inode) {
  problems_.emplace_back();
  problems_.back().what = std::move(what);
  problems_.back().inode = inode;
}

void Findings::AddFile(std::string what, InodeId inode) {
  Add(std::move(what), inode);
  damaged_files_.insert(inode);
}

void Findings::AddChunks(std::string what, const std::vector<Digest>& chunks) {
  for (const Digest& chunk : chunks) {
    const auto [entry, is_new] = chunks_.emplace(chunk, problems_.size());
    // That it is missing is explained now.
    if (!is_new && problems_[entry->second].only_if_named) entry->second = problems_.size();
  }
  problems_.emplace_back();
  problems_.back().what = std::move(what);
  problems_.back().is_chunk = !chunks.empty();
}

void Findings::AddMissing(const Digest& chunk) {
  if (!chunks_.emplace(chunk, problems_.size()).second) return;
  problems_.emplace_back();
  problems_.back().what = "chunk " + chunk.ToHex() + " is missing";
  problems_.back().is_chunk = problems_.back().only_if_named = true;
}

void Findings::NoteFile(InodeId inode, const std::vector<Digest>& chunks) {
  std::set<size_t> noted;
  for (const Digest& chunk : chunks) {
    auto found = chunks_.find(chunk);
    if (found == chunks_.end() || !noted.insert(found->second).second) continue;
    Problem& problem = problems_[found->second];
    problem.file_count++;
    if (problem.files.size() < kFilesNamedMax) problem.files.push_back(inode);
  }
  if (!noted.empty()) damaged_files_.insert(inode);
}

std::set<InodeId> Findings::InodesToName() const {
  std::set<InodeId> inodes;
  for (InodeId inode : damaged_files_) {
    if (inodes.size() == CheckReport::kDamagedFilesMax) break;
    inodes.insert(inode);
  }
  size_t listed = 0;
  for (const Problem& problem : problems_) {
    if (!problem.counts()) continue;
    if (++listed > CheckReport::kProblemsMax) break;
    if (problem.inode) inodes.insert(*problem.inode);
    inodes.insert(problem.files.begin(), problem.files.end());
  }
  return inodes;
}

static std::string NameOf(InodeId inode, const std::map<InodeId, std::string>& paths) {
  std::string number = "inode " + std::to_string(inode.value);
  auto path = paths.find(inode);
  return path == paths.end() ? number : path->second + " (" + number + ")";
}

std::string Findings::TextOf(const Problem& problem, const std::map<InodeId, std::string>& paths) const {
  if (problem.inode) return NameOf(*problem.inode, paths) + ": " + problem.what;
  if (!problem.is_chunk) return problem.what;
  if (problem.files.empty()) return problem.what + "; no file needs it";
  std::string text = problem.what + "; it is part of ";
  for (size_t i = 0; i < problem.files.size(); i++) text += (i > 0 ? ", " : "") + NameOf(problem.files[i], paths);
  if (problem.file_count > problem.files.size()) {
    text += " and " + std::to_string(problem.file_count - problem.files.size()) + " more files";
  }
  return text;
}

void Findings::Report(const std::map<InodeId, std::string>& paths, CheckReport& report) const {
  for (const Problem& problem : problems_) {
    if (!problem.counts()) continue;
    report.problem_count++;
    if (report.problems.size() < CheckReport::kProblemsMax) report.problems.push_back(TextOf(problem, paths));
  }
  report.damaged_file_count = damaged_files_.size();
  for (InodeId inode : damaged_files_) {
    if (report.damaged_files.size() == CheckReport::kDamagedFilesMax) break;
    auto path = paths.find(inode);
    report.damaged_files.push_back(path == paths.end() ? "#" + std::to_string(inode.value) : path->second);
  }
}

}  // namespace cairnfs::fs
