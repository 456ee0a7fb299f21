#include "client/file_identity.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>

#include <cerrno>

#include "client/errors.h"

namespace cairnfs::client {
namespace {

Timestamp TimeOf(const statx_timestamp& time) { return {time.tv_sec, time.tv_nsec}; }

}  // namespace

Result<FileIdentity> IdentityOf(int descriptor, const std::string& what) {
  struct statx found {};
  if (statx(descriptor, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &found) != 0) {
    return FileError(errno, what);
  }
  return FileIdentity{makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino, found.stx_size,
                      TimeOf(found.stx_mtime), TimeOf(found.stx_ctime)};
}

Clock::duration TimeBetween(const Timestamp& from, const Timestamp& to) {
  return std::chrono::seconds(to.seconds - from.seconds) +
         std::chrono::nanoseconds(int64_t{to.nanoseconds} - int64_t{from.nanoseconds});
}

Clock::duration FileClockTick() {
  timespec tick{};
  if (clock_getres(CLOCK_REALTIME_COARSE, &tick) != 0 || tick.tv_sec != 0) return kLongestTick;
  return std::chrono::nanoseconds(tick.tv_nsec);
}

}  // namespace cairnfs::client
