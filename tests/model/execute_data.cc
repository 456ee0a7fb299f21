// Opening, reading and writing.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>

#include "../support/random.h"
#include "world.h"

namespace cairnfs::testing {
namespace {

struct FreeDeleter {
  void operator()(char* memory) const { free(memory); }
};
using AlignedBuffer = std::unique_ptr<char, FreeDeleter>;

// O_DIRECT on ext4 wants aligned memory; everyone gets it.
AlignedBuffer MakeBuffer(size_t size) {
  return AlignedBuffer(static_cast<char*>(aligned_alloc(4096, (size + 8191) / 4096 * 4096)));
}

Outcome ReadInto(size_t size, const std::function<int64_t(char*)>& call) {
  AlignedBuffer buffer = MakeBuffer(size);
  Outcome outcome = FromCall(call(buffer.get()));
  if (outcome.result > 0) outcome.data.assign(buffer.get(), outcome.result);
  return outcome;
}

Outcome WriteFrom(const Operation& operation, const std::function<int64_t(const char*)>& call) {
  AlignedBuffer buffer = MakeBuffer(operation.length);
  std::string content = MakeContent(operation.content, operation.length);
  std::memcpy(buffer.get(), content.data(), content.size());
  return FromCall(call(buffer.get()));
}

// Three pieces of uneven size, as writev and readv callers have them.
std::array<iovec, 3> Pieces(char* memory, size_t size) {
  size_t first = size / 3, second = size / 2;
  if (size % 4096 == 0 && size > 3 * 4096) {  // stays aligned for O_DIRECT
    first = first / 4096 * 4096;
    second = second / 4096 * 4096;
  } else if (size % 4096 == 0) {
    first = second = 0;
  }
  return {iovec{memory, first}, iovec{memory + first, second - first}, iovec{memory + second, size - second}};
}

}  // namespace

Outcome World::Open(const Operation& operation) {
  int fd = openat(root_fd_, operation.a.c_str(), operation.flags | O_NONBLOCK | O_CLOEXEC, operation.mode);
  Outcome outcome = FromCall(fd);
  if (fd < 0) return outcome;
  if (slots_[operation.slot] >= 0) close(slots_[operation.slot]);
  slots_[operation.slot] = fd;
  outcome.result = 0;
  struct stat info;
  fstat(fd, &info);
  outcome.data = StatText(info);
  return outcome;
}

Outcome World::ExecuteData(const Operation& operation) {
  int& fd = slots_[operation.slot];
  off_t offset = static_cast<off_t>(operation.offset);
  switch (operation.kind) {
    case Kind::kOpen: return Open(operation);
    case Kind::kClose: {
      Outcome outcome = FromCall(close(fd));
      fd = -1;
      return outcome;
    }
    case Kind::kRead: return ReadInto(operation.length, [&](char* b) { return read(fd, b, operation.length); });
    case Kind::kPread:
      return ReadInto(operation.length, [&](char* b) { return pread(fd, b, operation.length, offset); });
    case Kind::kReadv:
      return ReadInto(operation.length, [&](char* b) {
        auto pieces = Pieces(b, operation.length);
        return preadv(fd, pieces.data(), 3, offset);
      });
    case Kind::kWrite: return WriteFrom(operation, [&](const char* b) { return write(fd, b, operation.length); });
    case Kind::kPwrite:
      return WriteFrom(operation, [&](const char* b) { return pwrite(fd, b, operation.length, offset); });
    case Kind::kWritev:
      return WriteFrom(operation, [&](const char* b) {
        auto pieces = Pieces(const_cast<char*>(b), operation.length);
        return pwritev2(fd, pieces.data(), 3, offset, operation.flags);
      });
    case Kind::kSeek:
      return FromCall(lseek(fd, static_cast<off_t>(operation.offset), static_cast<int>(operation.variant % 3)));
    case Kind::kFsync: return FromCall(fsync(fd));
    case Kind::kFdatasync: return FromCall(fdatasync(fd));
    case Kind::kFsyncDirectory: {
      int directory = openat(root_fd_, operation.a.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      if (directory < 0) return FromCall(-1);
      Outcome outcome = FromCall(fsync(directory));
      close(directory);
      return outcome;
    }
    default: abort();
  }
}

}  // namespace cairnfs::testing
