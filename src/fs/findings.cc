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
  problems_.back().chunk_count = chunks.size();
}

std::vector<Digest> Findings::DamagedChunks() const {
  std::vector<Digest> damaged;
  for (const auto& [chunk, problem] : chunks_) {
    if (!problems_[problem].only_if_named) damaged.push_back(chunk);
  }
  return damaged;
}

void Findings::NoteRepaired(const Digest& chunk) {
  auto found = chunks_.find(chunk);
  if (found != chunks_.end() && repaired_.insert(chunk).second) ++problems_[found->second].repaired_count;
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
    if (found == chunks_.end()) continue;
    Problem& problem = problems_[found->second];
    if (!repaired_.contains(chunk)) {
      damaged_files_.insert(inode);
    } else if (!problem.is_repaired()) {
      continue;  // it is not what is wrong yet
    }
    if (!noted.insert(found->second).second) continue;
    problem.file_count++;
    if (problem.files.size() < kFilesNamedMax) problem.files.push_back(inode);
  }
}

std::set<InodeId> Findings::InodesToName() const {
  std::set<InodeId> inodes;
  for (InodeId inode : damaged_files_) {
    if (inodes.size() == CheckReport::kDamagedFilesMax) break;
    inodes.insert(inode);
  }
  size_t listed = 0, listed_repaired = 0;
  for (const Problem& problem : problems_) {
    if (!problem.counts()) continue;
    if (++(problem.is_repaired() ? listed_repaired : listed) > CheckReport::kProblemsMax) continue;
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
  std::string text = problem.what;
  if (problem.is_repaired()) {
    text += "; replaced by another node's copy";
  } else if (problem.repaired_count > 0) {
    text += "; " + std::to_string(problem.repaired_count) + " of " + std::to_string(problem.chunk_count) +
            " chunks are replaced by other nodes' copies";
  }
  if (problem.files.empty()) return text + "; no file needs it";
  text += "; it is part of ";
  for (size_t i = 0; i < problem.files.size(); i++) text += (i > 0 ? ", " : "") + NameOf(problem.files[i], paths);
  if (problem.file_count > problem.files.size()) {
    text += " and " + std::to_string(problem.file_count - problem.files.size()) + " more files";
  }
  return text;
}

void Findings::Report(const std::map<InodeId, std::string>& paths, CheckReport& report) const {
  for (const Problem& problem : problems_) {
    if (!problem.counts()) continue;
    const bool is_repaired = problem.is_repaired();
    ++(is_repaired ? report.repaired_count : report.problem_count);
    std::vector<std::string>& texts = is_repaired ? report.repaired : report.problems;
    if (texts.size() < CheckReport::kProblemsMax) texts.push_back(TextOf(problem, paths));
  }
  report.damaged_file_count = damaged_files_.size();
  for (InodeId inode : damaged_files_) {
    if (report.damaged_files.size() == CheckReport::kDamagedFilesMax) break;
    auto path = paths.find(inode);
    report.damaged_files.push_back(path == paths.end() ? "#" + std::to_string(inode.value) : path->second);
  }
}

}  // namespace cairnfs::fs
