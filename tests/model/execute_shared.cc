// What several processes do in one directory at once. Each step is chosen so that its outcome is determined, whatever
// the others do; sums over all of them are checked at the end of a phase (checks.cc).
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "../support/random.h"
#include "checks.h"
#include "world.h"

namespace cairnfs::testing {
namespace {

int SetRangeLock(int fd, int command, short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_len = 8;
  return fcntl(fd, command, &lock);
}

}  // namespace

// Counts one up under a blocking lock; the three kinds of lock have a counter file each.
Outcome World::SharedCount(const Operation& operation) {
  unsigned how = operation.variant % 3;
  int fd = openat(shared_fd_, CounterName(how).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return FromCall(-1);
  int command = how == 1 ? F_OFD_SETLKW : F_SETLKW;
  Outcome outcome = FromCall(how == 0 ? flock(fd, LOCK_EX) : SetRangeLock(fd, command, F_WRLCK));
  if (outcome.result == 0) {
    uint64_t count = 0;
    if (pread(fd, &count, sizeof(count), 0) < 0) outcome = FromCall(-1);
    ++count;
    if (pwrite(fd, &count, sizeof(count), 0) != sizeof(count)) outcome = FromCall(-1);
    role_.totals->counted[how]++;
    if (operation.content % 2 == 0) {  // otherwise close gives it back
      int rc = how == 0 ? flock(fd, LOCK_UN) : SetRangeLock(fd, command, F_UNLCK);
      if (rc != 0) outcome = FromCall(rc);
    }
  }
  close(fd);
  return outcome;
}

Outcome World::SharedName(const Operation& operation) {
  std::string prefix = "w" + std::to_string(role_.worker) + "-";
  std::string first = "names/" + prefix + std::to_string(operation.variant % 12);
  std::string second = "names/" + prefix + std::to_string(operation.content % 12);
  Outcome outcome;
  switch (operation.variant / 12 % 4) {
    case 0:
    case 1: {
      int fd = openat(shared_fd_, first.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
      outcome = FromCall(fd);
      if (fd >= 0) {
        outcome = FromCall(write(fd, first.data(), first.size()));
        close(fd);
      }
      break;
    }
    case 2: outcome = FromCall(renameat(shared_fd_, first.c_str(), shared_fd_, second.c_str())); break;
    default: outcome = FromCall(unlinkat(shared_fd_, first.c_str(), 0)); break;
  }
  for (const std::string& name : ListNames(shared_fd_, "names")) {
    if (name.starts_with(prefix)) outcome.data += name + "\n";
  }
  return outcome;
}

Outcome World::SharedMap(const Operation& operation) {
  int fd = openat(shared_fd_, "map", O_RDWR | O_CLOEXEC);
  if (fd < 0) return FromCall(-1);
  off_t page = static_cast<off_t>(role_.worker) * 4096;
  void* map = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, page);
  if (map == MAP_FAILED) {
    Outcome outcome = FromCall(-1);
    close(fd);
    return outcome;
  }
  std::memcpy(map, MakeContent(operation.content, 4096).data(), 4096);
  Outcome outcome = FromCall(operation.variant % 2 == 0 ? msync(map, 4096, MS_SYNC) : 0);
  munmap(map, 4096);
  outcome.data.resize(4096);
  if (pread(fd, outcome.data.data(), 4096, page) != 4096) outcome = FromCall(-1);
  close(fd);
  return outcome;
}

Outcome World::ExecuteShared(const Operation& operation) {
  switch (operation.kind) {
    case Kind::kSharedAppend: {
      int fd = openat(shared_fd_, "log", O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
      if (fd < 0) return FromCall(-1);
      std::string record = AppendRecord(role_.worker, operation.content);
      Outcome outcome = FromCall(write(fd, record.data(), record.size()));
      close(fd);
      role_.totals->appended_records++;
      return outcome;
    }
    case Kind::kSharedBlock: {
      int fd = openat(shared_fd_, "blocks", O_RDWR | O_CREAT | O_CLOEXEC, 0666);
      if (fd < 0) return FromCall(-1);
      constexpr size_t kBlock = 10007;  // no multiple of anything, so that neighbours share pages and chunks
      off_t offset = static_cast<off_t>((operation.variant % 64 * role_.worker_count + role_.worker) * kBlock);
      std::string block = MakeContent(operation.content, kBlock);
      Outcome outcome = FromCall(pwrite(fd, block.data(), block.size(), offset));
      outcome.data.resize(kBlock);
      if (pread(fd, outcome.data.data(), kBlock, offset) != static_cast<ssize_t>(kBlock)) outcome = FromCall(-1);
      if (outcome.data != block) outcome.data = "an own block was changed by somebody else";
      close(fd);
      return outcome;
    }
    case Kind::kSharedName: return SharedName(operation);
    case Kind::kSharedCount: return SharedCount(operation);
    case Kind::kSharedMap: return SharedMap(operation);
    case Kind::kSharedMkdir: {
      std::string name = "race/" + std::to_string(role_.phase) + "-" + std::to_string(operation.variant);
      Outcome outcome = FromCall(mkdirat(shared_fd_, name.c_str(), 0777));
      if (outcome.result == 0) role_.totals->mkdirs_won++;
      if (outcome.result != 0 && outcome.error == EEXIST) outcome = Outcome();  // somebody else was first
      return outcome;
    }
    default: abort();
  }
}

}  // namespace cairnfs::testing
