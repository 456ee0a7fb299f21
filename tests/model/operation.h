// One operation of the model test: what is called, with which arguments. The same operation is carried out on the
// mount and on a plain ext4 directory.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>

namespace cairnfs::testing {

#define CAIRNFS_MODEL_KINDS(X)                           \
  X(kOpen, "open", 70)                                   \
  X(kClose, "close", 40)                                 \
  X(kRead, "read", 15)                                   \
  X(kPread, "pread", 50)                                 \
  X(kReadv, "preadv", 10)                                \
  X(kWrite, "write", 25)                                 \
  X(kPwrite, "pwrite", 70)                               \
  X(kWritev, "pwritev", 10)                              \
  X(kSeek, "lseek", 12)                                  \
  X(kSeekHole, "lseek SEEK_DATA/HOLE", 15)               \
  X(kFtruncate, "ftruncate", 20)                         \
  X(kTruncate, "truncate", 15)                           \
  X(kFallocate, "fallocate", 12)                         \
  X(kPunchHole, "fallocate punch hole", 12)              \
  X(kZeroRange, "fallocate zero range", 12)              \
  X(kFsync, "fsync", 6)                                  \
  X(kFdatasync, "fdatasync", 6)                          \
  X(kFsyncDirectory, "fsync of a directory", 4)          \
  X(kRename, "rename", 40)                               \
  X(kRenameDirectory, "rename of a directory", 5)        \
  X(kRenameNoreplace, "renameat2 NOREPLACE", 8)          \
  X(kRenameExchange, "renameat2 EXCHANGE", 8)            \
  X(kReplace, "write new file, rename over old", 12)     \
  X(kLink, "link", 20)                                   \
  X(kSymlink, "symlink", 16)                             \
  X(kReadlink, "readlink", 12)                           \
  X(kMkfifo, "mknod FIFO", 6)                            \
  X(kMksocket, "mknod socket", 6)                        \
  X(kMknod, "mknod regular", 8)                          \
  X(kMkdir, "mkdir", 35)                                 \
  X(kRmdir, "rmdir", 14)                                 \
  X(kUnlink, "unlink", 24)                               \
  X(kUnlinkOpen, "unlink while open", 8)                 \
  X(kRemoveTree, "remove a tree", 3)                     \
  X(kChmod, "chmod", 16)                                 \
  X(kFchmod, "fchmod", 10)                               \
  X(kChown, "chown", 12)                                 \
  X(kUtimens, "utimensat", 16)                           \
  X(kFutimens, "futimens", 8)                            \
  X(kSetxattr, "setxattr", 16)                           \
  X(kGetxattr, "getxattr", 12)                           \
  X(kListxattr, "listxattr", 8)                          \
  X(kRemovexattr, "removexattr", 8)                      \
  X(kStat, "lstat", 20)                                  \
  X(kAccess, "faccessat", 12)                            \
  X(kStatfs, "statfs", 4)                                \
  X(kReaddir, "readdir", 16)                             \
  X(kFlock, "flock", 12)                                 \
  X(kOfdLock, "fcntl OFD lock", 12)                      \
  X(kPosixLock, "fcntl POSIX lock, two processes", 6)    \
  X(kMmapShared, "mmap shared, write", 14)               \
  X(kMmapPrivate, "mmap private", 10)                    \
  X(kMmapRead, "mmap shared, read", 10)                  \
  X(kCopyRange, "copy_file_range", 20)                   \
  X(kSendfile, "sendfile", 5)                            \
  X(kReopenUnlinked, "read through /proc/self/fd", 6)    \
  X(kTmpfile, "open O_TMPFILE", 2)                       \
  X(kLongName, "names of 255 bytes and more", 5)         \
  X(kHugeOffset, "offsets near 2^63", 5)                 \
  X(kSharedAppend, "together: append a record", 14)      \
  X(kSharedBlock, "together: write an own block", 14)    \
  X(kSharedName, "together: names in one directory", 14) \
  X(kSharedCount, "together: count under a lock", 10)    \
  X(kSharedMkdir, "together: mkdir race", 6)             \
  X(kSharedMap, "together: own page of a shared mapping", 8)

enum class Kind : uint8_t {
#define CAIRNFS_MODEL_ENUM(name, text, weight) name,
  CAIRNFS_MODEL_KINDS(CAIRNFS_MODEL_ENUM)
#undef CAIRNFS_MODEL_ENUM
      kCount
};
constexpr size_t kKindCount = static_cast<size_t>(Kind::kCount);

struct KindInfo {
  const char* name;
  unsigned weight;  // how often, relative to the others
};
extern const std::array<KindInfo, kKindCount> kKinds;
inline const KindInfo& InfoOf(Kind kind) { return kKinds[static_cast<size_t>(kind)]; }

constexpr int kSlotCount = 10;  // open descriptors of a process

struct Operation {
  Kind kind = Kind::kStat;
  std::string a, b;  // paths, relative to the root of the process's subtree (shared ones: of the shared one)
  int slot = 0, slot2 = 0;
  uint64_t offset = 0, offset2 = 0, length = 0;
  int flags = 0;  // of open, fallocate, rename, locks: as the system call takes them
  mode_t mode = 0;
  uint32_t uid = 0;      // who calls; 0: root
  uint64_t content = 0;  // seed of the bytes written
  uint64_t variant = 0;  // what else the kind needs to decide

  std::string Describe() const;
};

struct Outcome {
  int64_t result = 0;  // -1: failed with `error`
  int error = 0;
  std::string data;  // what was read, or the rest of the answer as text
  bool operator==(const Outcome& other) const = default;
  std::string Describe() const;
};

}  // namespace cairnfs::testing
