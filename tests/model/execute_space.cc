// Size, holes, and data that moves from file to file.
#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "world.h"

namespace cairnfs::testing {
namespace {

bool IsZero(int fd, uint64_t begin, uint64_t end) {
  std::string buffer(64 * 1024, '\0');
  end = std::min<uint64_t>(end, begin + 1024 * 1024);  // the first MiB of a hole stands for all of it
  while (begin < end) {
    ssize_t count = pread(fd, buffer.data(), std::min<uint64_t>(buffer.size(), end - begin), begin);
    if (count <= 0) return true;  // write-only descriptor or the end of the file
    if (std::any_of(buffer.begin(), buffer.begin() + count, [](char c) { return c != 0; })) return false;
    begin += count;
  }
  return true;
}

}  // namespace

// The two sides may call different ranges holes. Compared: the error, and that every answer is a true one.
Outcome World::SeekHole(const Operation& operation) {
  int fd = slots_[operation.slot];
  off_t before = lseek(fd, 0, SEEK_CUR);
  int whence = operation.variant % 2 == 0 ? SEEK_DATA : SEEK_HOLE;
  off_t found = lseek(fd, static_cast<off_t>(operation.offset), whence);
  Outcome outcome = FromCall(found);
  struct stat info;
  fstat(fd, &info);
  if (found >= 0) {
    outcome.result = 0;
    if (found < static_cast<off_t>(operation.offset) || found > info.st_size) outcome.data = "out of range";
    bool readable = (fcntl(fd, F_GETFL) & (O_ACCMODE | O_DIRECT)) != O_WRONLY;
    if (whence == SEEK_DATA && readable && (fcntl(fd, F_GETFL) & O_DIRECT) == 0 &&
        !IsZero(fd, operation.offset, found)) {
      outcome.data = "data was skipped";
    }
  } else if (outcome.error == ENXIO && operation.offset < static_cast<uint64_t>(info.st_size)) {
    // No data from here on: true when the rest is zeros.
    outcome.result = whence == SEEK_DATA ? 0 : -1;
    outcome.error = whence == SEEK_DATA ? 0 : ENXIO;
    bool readable = (fcntl(fd, F_GETFL) & O_ACCMODE) != O_WRONLY && (fcntl(fd, F_GETFL) & O_DIRECT) == 0;
    if (readable && !IsZero(fd, operation.offset, info.st_size)) outcome.data = "data was denied";
  }
  if (before >= 0) lseek(fd, before, SEEK_SET);
  return outcome;
}

Outcome World::ExecuteSpace(const Operation& operation) {
  int fd = slots_[operation.slot];
  int fd2 = slots_[operation.slot2];
  off_t offset = static_cast<off_t>(operation.offset);
  off_t offset2 = static_cast<off_t>(operation.offset2);
  off_t length = static_cast<off_t>(operation.length);
  switch (operation.kind) {
    case Kind::kSeekHole: return SeekHole(operation);
    case Kind::kFtruncate: return FromCall(ftruncate(fd, offset));
    case Kind::kTruncate: return FromCall(truncate(PathOf(operation.a).c_str(), offset));
    case Kind::kFallocate:
    case Kind::kPunchHole:
    case Kind::kZeroRange: return FromCall(fallocate(fd, operation.flags, offset, length));
    case Kind::kCopyRange: return FromCall(copy_file_range(fd, &offset, fd2, &offset2, operation.length, 0));
    case Kind::kSendfile: {
      // Within one file what is read may have been written a moment before; how much depends on the sizes of buffers.
      struct stat from = {}, to = {};
      if (fstat(fd, &from) == 0 && fstat(fd2, &to) == 0 && from.st_ino == to.st_ino) return FromCall(0);
      lseek(fd2, offset2, SEEK_SET);
      return FromCall(sendfile(fd2, fd, &offset, operation.length));
    }
    default: abort();
  }
}

}  // namespace cairnfs::testing
