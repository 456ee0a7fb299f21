// What tells whether a file is still the one that it was: docs/gpu.md, "When a base is trusted".
#pragma once

#include <cstdint>

#include "base/clock.h"
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

Clock::duration TimeBetween(const Timestamp& from, const Timestamp& to);  // negative where `to` is earlier

// Linux has no longer one.
inline constexpr Clock::duration kLongestTick = std::chrono::milliseconds(10);
// How often this host's kernel moves the time that it gives to files.
Clock::duration FileClockTick();

}  // namespace cairnfs::client
