// The directory of a run, as the commands of retention work in it: it becomes the current one, so that whatever its
// path leads to later, this one is meant.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "retention/policy.h"

namespace cairnfs::tools {

class RunDirectory {
 public:
  // kInvalidArgument: it is the root of a filesystem. kUnavailable: it is on no CairnFS. Else as of chdir(2).
  static Result<RunDirectory> Enter(const std::string& directory);
  // The one with this inode, past no symbolic link and no other mount. `path` lies below the mount point, and has no
  // slash at its begin. kStale: another one is there.
  static Result<RunDirectory> EnterBelow(const std::string& mount_point, const std::string& path, uint64_t inode);

  const std::string& path() const { return path_; }
  uid_t owner() const { return owner_; }
  // Whose checkpoints its policy is about: where root goes by what another user has set, that user's alone.
  std::optional<uid_t> OnlyOf() const;
  // nullopt: it has none.
  Result<std::optional<retention::Policy>> ReadPolicy() const;
  // nullptr: takes it away.
  Status SetPolicy(const retention::Policy* policy) const;
  // How it was last applied by itself, as JSON; nullopt: it was not, or only its owner and root are told.
  std::optional<std::string> ReadLastTime() const;

 private:
  std::string path_;
  uid_t owner_ = 0;
};

}  // namespace cairnfs::tools
