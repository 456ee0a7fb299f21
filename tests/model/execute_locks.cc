// flock, OFD locks, and POSIX locks between two processes.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "../support/random.h"
#include "world.h"

namespace cairnfs::testing {
namespace {

struct flock LockOf(uint64_t bits) {
  struct flock lock = {};
  const short kTypes[] = {F_RDLCK, F_WRLCK, F_WRLCK, F_UNLCK};
  lock.l_type = kTypes[bits % 4];
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(bits >> 8 & 0x3f) * 100;
  lock.l_len = static_cast<off_t>(bits >> 16 & 0xf) * 100;  // 0: to the end
  return lock;
}

std::string LockText(const struct flock& lock, pid_t holder) {
  if (lock.l_type == F_UNLCK) return "free";
  std::string owner = lock.l_pid == holder ? "expected holder"
                      : lock.l_pid == -1   ? "OFD"
                                           : "pid " + std::to_string(lock.l_pid);
  return std::to_string(lock.l_type) + " " + std::to_string(lock.l_start) + "+" + std::to_string(lock.l_len) + " " +
         owner;
}

// In the child: what the locks of the parent let it do, as text through `report`.
void ProbeLocks(int root_fd, const char* path, uint64_t seed, pid_t parent, int report) {
  std::string text;
  int fd = openat(root_fd, path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
  Random random(seed);
  for (int i = 0; i < 4 && fd >= 0; ++i) {
    struct flock lock = LockOf(random.Next());
    if (lock.l_type == F_UNLCK) lock.l_type = F_WRLCK;
    struct flock asked = lock;
    int rc = fcntl(fd, F_GETLK, &asked);
    text += rc == 0 ? LockText(asked, parent) : strerrorname_np(errno);
    rc = fcntl(fd, F_SETLK, &lock);
    text += rc == 0 ? " got it; " : std::string(" ") + strerrorname_np(errno) + "; ";
  }
  if (write(report, text.data(), text.size()) < 0) _exit(1);
  _exit(0);
}

}  // namespace

Outcome World::PosixLock(const Operation& operation) {
  int fd = openat(root_fd_, operation.a.c_str(), O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return FromCall(-1);
  Random random(operation.variant);
  Outcome outcome;
  for (int i = 0; i < 3; ++i) {
    struct flock lock = LockOf(random.Next());
    outcome.data += fcntl(fd, F_SETLK, &lock) == 0 ? "ok " : strerrorname_np(errno);
  }
  int report[2];
  if (pipe(report) != 0) abort();
  pid_t parent = getpid();
  pid_t child = fork();
  if (child == 0) ProbeLocks(root_fd_, operation.a.c_str(), operation.variant + 1, parent, report[1]);
  close(report[1]);
  char buffer[1024];
  for (ssize_t count; (count = read(report[0], buffer, sizeof(buffer))) > 0;) outcome.data.append(buffer, count);
  close(report[0]);
  waitpid(child, nullptr, 0);
  // The child's locks went with it.
  struct flock all = {};
  all.l_type = F_WRLCK;
  outcome.result = fcntl(fd, F_SETLK, &all);
  if (outcome.result != 0) outcome.error = errno;
  close(fd);
  return outcome;
}

Outcome World::ExecuteLocks(const Operation& operation) {
  int fd = slots_[operation.slot];
  switch (operation.kind) {
    case Kind::kFlock: {
      const int kOperations[] = {LOCK_SH, LOCK_EX, LOCK_UN};
      return FromCall(flock(fd, kOperations[operation.variant % 3] | LOCK_NB));
    }
    case Kind::kOfdLock: {
      struct flock lock = LockOf(operation.content);
      if (operation.variant % 3 != 0) return FromCall(fcntl(fd, F_OFD_SETLK, &lock));
      if (lock.l_type == F_UNLCK) lock.l_type = F_WRLCK;
      Outcome outcome = FromCall(fcntl(fd, F_OFD_GETLK, &lock));
      if (outcome.result == 0) outcome.data = LockText(lock, 0);
      return outcome;
    }
    case Kind::kPosixLock: return PosixLock(operation);
    default: abort();
  }
}

}  // namespace cairnfs::testing
