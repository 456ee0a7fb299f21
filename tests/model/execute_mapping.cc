// Memory mappings, and the odd ends of the interface.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "../support/random.h"
#include "world.h"

namespace cairnfs::testing {

// Maps up to 1 MiB of the file around `offset`, and touches only what lies before its end.
Outcome World::ExecuteMapping(const Operation& operation) {
  bool writes = operation.kind != Kind::kMmapRead;
  bool shared = operation.kind != Kind::kMmapPrivate;
  int flags = (writes && shared ? O_RDWR : O_RDONLY) | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC;
  int fd = openat(root_fd_, operation.a.c_str(), flags);
  if (fd < 0) return FromCall(-1);
  struct stat info;
  fstat(fd, &info);
  const bool stores = writes && !(shared && (info.st_mode & (S_ISUID | S_ISGID)) != 0);  // differences.h
  uint64_t size = S_ISREG(info.st_mode) ? info.st_size : 0;
  uint64_t begin = size == 0 ? 0 : operation.offset % size / 4096 * 4096;
  uint64_t count = std::min<uint64_t>(size - begin, 1024 * 1024);
  size_t mapped = std::max<uint64_t>(count, 4096);
  void* map = mmap(nullptr, mapped, writes ? PROT_READ | PROT_WRITE : PROT_READ, shared ? MAP_SHARED : MAP_PRIVATE, fd,
                   static_cast<off_t>(begin));
  if (map == MAP_FAILED) {
    Outcome outcome = FromCall(-1);
    close(fd);
    return outcome;
  }
  if (operation.variant % 2 == 0) {  // a mapping outlives its descriptor
    close(fd);
    fd = -1;
  }
  Outcome outcome;
  auto* bytes = static_cast<char*>(map);
  if (count > 0) {
    uint64_t first = operation.offset2 % count;
    uint64_t length = std::min<uint64_t>(operation.length, count - first);
    if (stores) std::memcpy(bytes + first, MakeContent(operation.content, length).data(), length);
    outcome.data.assign(bytes, count);
    if (operation.variant % 3 == 0 && writes && shared) {
      Outcome synced = FromCall(msync(map, mapped, MS_SYNC));
      if (synced.result != 0) outcome = synced;
    }
  }
  munmap(map, mapped);
  if (fd >= 0) close(fd);
  return outcome;
}

// Past ext4's largest file CairnFS may do what ext4 refuses with EFBIG. Then the file must have the size that follows;
// it gets its old one back, and the two sides go on alike.
Outcome World::HugeOffset(const Operation& operation) {
  int fd = slots_[operation.slot];
  off_t offset = static_cast<off_t>(operation.offset);
  std::string content = MakeContent(operation.content, operation.length);
  unsigned what = operation.variant % 4;
  if (what == 2) return FromCall(pread(fd, content.data(), content.size(), offset));
  struct stat before = {}, after = {};
  fstat(fd, &before);
  Outcome outcome;
  switch (what) {
    case 0: outcome = FromCall(pwrite(fd, content.data(), content.size(), offset)); break;
    case 1: outcome = FromCall(ftruncate(fd, offset)); break;
    default: outcome = FromCall(fallocate(fd, 0, offset, static_cast<off_t>(operation.length))); break;
  }
  if (!is_cairnfs_ || outcome.result < 0) return outcome;
  // Where a descriptor appends, the offset means nothing, and ext4 does the same.
  if (what == 0 && (fcntl(fd, F_GETFL) & O_APPEND) != 0) return outcome;
  fstat(fd, &after);
  off_t expected = what == 0   ? offset + outcome.result
                   : what == 1 ? offset
                               : offset + static_cast<off_t>(operation.length);
  if (after.st_size != expected) outcome.data = "the size does not follow";
  if (ftruncate(fd, before.st_size) != 0) return FromCall(-1);
  outcome.result = -1;
  outcome.error = EFBIG;
  return outcome;
}

Outcome World::ExecuteSpecial(const Operation& operation) {
  int fd = slots_[operation.slot];
  switch (operation.kind) {
    case Kind::kReopenUnlinked: {
      std::string path = "/proc/self/fd/" + std::to_string(fd);
      int again = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
      if (again < 0) return FromCall(-1);
      std::string buffer(operation.length, '\0');
      Outcome outcome = FromCall(pread(again, buffer.data(), buffer.size(), static_cast<off_t>(operation.offset)));
      if (outcome.result > 0) outcome.data = buffer.substr(0, outcome.result);
      close(again);
      return outcome;
    }
    case Kind::kTmpfile: {
      int file = openat(root_fd_, operation.a.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
      Outcome outcome = FromCall(file);
      if (file < 0) return outcome;
      close(file);
      if (is_cairnfs_) return outcome;
      // ext4 has it. The mount does not, but says so only to those who may write into the directory.
      outcome = Outcome();
      outcome.result = -1;
      outcome.error = EOPNOTSUPP;
      return outcome;
    }
    case Kind::kLongName: {
      int file = openat(root_fd_, operation.a.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
      if (file < 0) return FromCall(-1);
      close(file);
      Outcome outcome;
      outcome.data = ListNames(root_fd_, ".").back();
      unlinkat(root_fd_, operation.a.c_str(), 0);
      return outcome;
    }
    case Kind::kHugeOffset: return HugeOffset(operation);
    default: abort();
  }
}

}  // namespace cairnfs::testing
