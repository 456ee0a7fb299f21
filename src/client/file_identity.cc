#include "client/file_identity.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>

#include <cerrno>

#include "base/clock.h"
#include "client/errors.h"

namespace cairnfs::client {
namespace {

constexpr int64_t kNanosecondsPerSecond = 1'000'000'000;

// How often the kernel moves the time that it gives to files.
int64_t TickNanoseconds() {
  timespec tick{};
  if (clock_getres(CLOCK_REALTIME_COARSE, &tick) != 0 || tick.tv_sec != 0) return 10'000'000;
  return tick.tv_nsec;
}

int64_t NanosecondsBetween(Timestamp from, Timestamp to) {
  return (to.seconds - from.seconds) * kNanosecondsPerSecond + int64_t{to.nanoseconds} - int64_t{from.nanoseconds};
}

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

bool WaitPast(Timestamp time) {
  const int64_t tick = TickNanoseconds();
  const int64_t distance = 2 * tick;
  // A sleep may end early in the tick, so a few more than needed are tried.
  for (int tries = 0; tries < 8; tries++) {
    const int64_t passed = NanosecondsBetween(time, Clock::WallTime());
    if (passed > distance) return true;
    if (passed < -distance) return false;
    Clock::SleepFor(std::chrono::nanoseconds(distance - passed + 1));
  }
  return false;
}

}  // namespace cairnfs::client
