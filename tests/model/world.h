// One of the two sides of the model test: a directory, the descriptors that are open in it, and how an operation is
// carried out there.
#pragma once

#include <sys/stat.h>

#include <array>
#include <atomic>
#include <string>
#include <vector>

#include "operation.h"

namespace cairnfs::testing {

// What the processes of one phase count together, in memory that they share; one for each side.
struct SharedTotals {
  std::atomic<uint64_t> appended_records, mkdirs_won;
  std::atomic<uint64_t> counted[3];  // by kind of lock: flock, OFD, POSIX
};

// Which part a process has in what they do together.
struct SharedRole {
  unsigned worker = 0, worker_count = 1, phase = 0;
  SharedTotals* totals = nullptr;
};

class World {
 public:
  // `own`: the root of this process's subtree; `shared`: the directory that all processes share. Both exist.
  // `is_cairnfs` chooses the expected answer where the two sides differ by design (see differences.h).
  World(const std::string& own, const std::string& shared, bool is_cairnfs, const SharedRole& role);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Outcome Execute(const Operation& operation);
  void CloseSlots();

  int root_fd() const { return root_fd_; }
  int shared_fd() const { return shared_fd_; }
  int slot_fd(int slot) const { return slots_[slot]; }
  const std::string& root_path() const { return root_path_; }

 private:
  Outcome ExecuteData(const Operation& operation);
  Outcome ExecuteSpace(const Operation& operation);
  Outcome ExecuteNames(const Operation& operation);
  Outcome ExecuteAttributes(const Operation& operation);
  Outcome ExecuteListing(const Operation& operation);
  Outcome ExecuteMapping(const Operation& operation);
  Outcome ExecuteLocks(const Operation& operation);
  Outcome ExecuteShared(const Operation& operation);
  Outcome ExecuteSpecial(const Operation& operation);

  Outcome Open(const Operation& operation);
  Outcome ReplaceByRename(const Operation& operation);
  Outcome HugeOffset(const Operation& operation);
  Outcome SeekHole(const Operation& operation);
  Outcome PosixLock(const Operation& operation);
  Outcome SharedName(const Operation& operation);
  Outcome SharedCount(const Operation& operation);
  Outcome SharedMap(const Operation& operation);
  std::string PathOf(const std::string& relative) const { return root_path_ + "/" + relative; }

  int root_fd_;
  int shared_fd_;
  std::string root_path_;
  bool is_cairnfs_;
  SharedRole role_;
  std::array<int, kSlotCount> slots_;
};

// The value of a system call: its result, or -1 and errno.
Outcome FromCall(int64_t result);
// Names in a directory, sorted, without "." and ".."; each with its type letter as readdir tells it.
std::vector<std::string> ListNames(int directory_fd, const std::string& path);
// What lstat says, as text, without what may differ between the sides.
std::string StatText(const struct stat& info);

// Effective user, group and groups of another user while it lives.
class AsUser {
 public:
  explicit AsUser(uint32_t uid);
  ~AsUser();

 private:
  uint32_t uid_;
};

}  // namespace cairnfs::testing
