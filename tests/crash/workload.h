// A writer: saves, overwrites, commits, replaces and deletes in a directory of its own, as trainers and editors do, and
// records each step with its beginning and end.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "../support/random.h"
#include "oracle.h"

namespace cairnfs::testing {

struct WorkloadOptions {
  std::string root;  // of the mount; the writer's directory exists below
  uint64_t seed = 0;
  uint64_t file_bytes_max = 400 * 1024;
  unsigned sync_percent = 12;  // of saved files that are fsynced
  unsigned pause_us_max = 3000;
  size_t files_max = 24;               // deletes one when there are more
  bool quiet = false;                  // asks for nothing: no sync point at all
  bool directory_renames_wait = true;  // they are sync points (docs/contract.md, item 5)
};

class Workload {
 public:
  Workload(const WorkloadOptions& options, Writer& writer, Sequence& sequence);
  ~Workload();
  // Works until `stop` or until the first call that fails.
  void Run(const std::atomic<bool>& stop);
  // What failed, with errno in words; empty: nothing did.
  const std::string& failure() const { return failure_; }
  // No answer may be a lie: set when a call failed although nothing was wrong with its arguments, with its errno.
  int failure_errno() const { return failure_errno_; }

 private:
  struct File {
    std::string path;
    int id;
  };
  bool Act();
  bool ActQuietly();
  bool SaveNew(const std::string& path, bool sync, File* saved);
  bool Overwrite();
  bool Append();
  bool Truncate();
  bool Punch();
  bool Copy();
  bool MapAndWrite();
  bool Commit();
  bool DeleteStep();
  bool Replace();
  bool Rename();
  bool MakeLink();
  bool Attributes();
  bool Delete();
  bool DeleteAt(size_t index);
  bool DeleteOpen();
  bool SyncDirectory();

  Record& Begin(Step step, const std::string& a, const std::string& b = "", int file = kNoFile);
  bool End(Record& record, int64_t result, const char* what);
  bool WriteTo(int fd, int file, uint64_t offset, uint64_t length, bool is_sync_point);
  bool CloseFile(int fd, int file);
  bool SyncFile(int fd, int file);
  int OpenFile(const std::string& path, int flags);
  bool Fail(const char* what);
  std::string Full(const std::string& path) const { return directory_ + "/" + path; }
  std::string FreshName(const char* prefix) { return prefix + std::to_string(++names_made_); }
  uint64_t PickSize();
  uint64_t PickSeed();
  size_t PickFile() { return random_.Below(files_.size()); }

  WorkloadOptions options_;
  Writer& writer_;
  Sequence& sequence_;
  Random random_;
  std::string directory_;
  std::string failure_;
  int failure_errno_ = 0;
  uint64_t names_made_ = 0;
  int files_made_ = 0;
  std::vector<File> files_;                                       // paths that are there; links are two of the same id
  std::map<int, std::string> contents_;                           // by id
  std::vector<std::pair<std::string, std::vector<File>>> steps_;  // committed directories
  std::deque<int> deleted_open_;                                  // descriptors of files without a name
  std::vector<std::string> links_;                                // symbolic ones
};

}  // namespace cairnfs::testing
