// Findings: what a check has found, each problem once. Not thread-safe.
#pragma once

#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "fs/filesystem.h"

namespace cairnfs::fs {

class Findings {
 public:
  // What is wrong this many times in a row is wrong, though its record changed each time.
  static constexpr int kLooksMax = 8;

  // Something is wrong with an inode's names or record, or with nothing that an inode stands for.
  void Add(std::string what, std::optional<InodeId> inode = std::nullopt);
  // The file cannot be read as a whole, for a reason that no chunk shows.
  void AddFile(std::string what, InodeId inode);
  // Chunks are lost or damaged: one problem, however many files name them.
  void AddChunks(std::string what, const std::vector<Digest>& chunks);
  // As AddChunks, but no problem unless a file turns out to name it: the record that did may be gone by now.
  void AddMissing(const Digest& chunk);

  // Those of AddChunks.
  std::vector<Digest> DamagedChunks() const;
  // Another node's copy has taken its place. A problem all of whose chunks are repaired is none any more.
  void NoteRepaired(const Digest& chunk);

  bool HasChunk(const Digest& chunk) const { return chunks_.contains(chunk); }
  bool HasChunks() const { return !chunks_.empty(); }
  // The file names those chunks. REQUIRES (unchecked): all chunks are added, and noted as repaired; once for each file.
  void NoteFile(InodeId inode, const std::vector<Digest>& chunks);

  // The inodes whose paths Report wants to know.
  std::set<InodeId> InodesToName() const;
  // Puts problems, what was repaired, and damaged files into `report`.
  void Report(const std::map<InodeId, std::string>& paths, CheckReport& report) const;

 private:
  static constexpr size_t kFilesNamedMax = 3;  // of one chunk, in its problem's text
  struct Problem {
    std::string what;
    std::optional<InodeId> inode;  // that it is about
    bool is_chunk = false;
    bool only_if_named = false;
    uint64_t chunk_count = 0, repaired_count = 0;
    uint64_t file_count = 0;
    std::vector<InodeId> files;  // the first kFilesNamedMax
    bool counts() const { return !only_if_named || file_count > 0; }
    bool is_repaired() const { return chunk_count > 0 && repaired_count == chunk_count; }
  };
  std::string TextOf(const Problem& problem, const std::map<InodeId, std::string>& paths) const;

  std::vector<Problem> problems_;
  std::unordered_map<Digest, size_t, DigestHash> chunks_;  // which problem
  std::unordered_set<Digest, DigestHash> repaired_;
  std::set<InodeId> damaged_files_;
};

}  // namespace cairnfs::fs
