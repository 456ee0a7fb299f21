// What tells whether a file is still the one that it was: docs/gpu.md, "When a base is trusted".
#pragma once

#include <cstdint>

#include "base/result.h"
#include "base/types.h"

namespace cairnfs::client {

struct FileIdentity {
  uint64_t device = 0;  // st_dev
  uint64_t inode = 0;
  uint64_t bytes = 0;
  Timestamp mtime;
  Timestamp ctime;
  bool operator==(const FileIdentity&) const = default;
};

// Asks the file system, not a cache of attributes. `what` begins the message.
Result<FileIdentity> IdentityOf(int descriptor, const std::string& what);

// Waits until the clock is two of its ticks past `time`: what is done to a file from then on gets another time. False:
// it is not, although it should be by now; that clock is not this one.
bool WaitPast(Timestamp time);

}  // namespace cairnfs::client
