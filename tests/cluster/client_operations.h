// Carries out the operations of a recorded history on a directory, one system call sequence each.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "lock_specification.h"
#include "tree_specification.h"

namespace cairnfs::testing {

// Small enough that a whole file is one page, which the kernel reads and writes at once; and several slots share the
// page, so that hosts that write disjoint slots of one file also share it.
constexpr size_t kSlotBytes = 1024;
constexpr char kTokenXattr[] = "user.round_token";

// The bytes of one slot that a write with this token leaves there, and back: 0 for zeros, -1 for anything else.
std::string SlotContent(int64_t token, int64_t slot);
int64_t TokenOfSlot(const char* bytes, int64_t slot);

struct PerformOptions {
  bool sync = false;  // writes: fsync before the close
};

// `operation` below the directory `root`. Its `result` and `interval` are not looked at.
TreeResult Perform(const std::string& root, const TreeOperation& operation, const PerformOptions& options = {});

// The locks of one process. Files stay open until the end: closing one would free the process's record locks.
class LockFiles {
 public:
  enum class Kind { kFlock, kProcess, kOpenFile };
  LockFiles() = default;
  LockFiles(const LockFiles&) = delete;
  LockFiles& operator=(const LockFiles&) = delete;
  ~LockFiles();
  bool IsOpen(const std::string& path, Kind kind) const { return descriptors_.contains({path, kind}); }
  // errno.
  int Open(const std::string& path, Kind kind);
  // errno. `operation` says what to do and on which range: kTry, kWait or kUnlock. REQUIRES: IsOpen.
  int Perform(const std::string& path, Kind kind, const LockOperation& operation);

 private:
  std::map<std::pair<std::string, Kind>, int> descriptors_;
};

}  // namespace cairnfs::testing
