// BackingRegistry: where the kernel is told of files in memory that it may read and map in place of files of the mount
// (FUSE passthrough). The front end has one.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "base/types.h"

namespace cairnfs::fs {

using BackingId = int32_t;  // not 0

// Any thread.
class BackingRegistry {
 public:
  virtual ~BackingRegistry() = default;
  // The kernel keeps the file until Unregister, and for who has it open or mapped then. kPermission: that takes
  // CAP_SYS_ADMIN in the first user namespace, or the kernel was not told at the mount that there would be such files.
  virtual Result<BackingId> Register(int fd) = 0;
  // REQUIRES (unchecked): every open that was answered with the id is released, or its answer was not taken. An answer
  // that the kernel has not come to use yet would make the open fail with EIO.
  virtual void Unregister(BackingId id) = 0;
  // The kernel is to ask for the attributes of the file again, which has two node ids from now on: a change by one
  // would leave what it remembers of the other.
  virtual void ForgetAttributes(InodeId inode) = 0;
};

}  // namespace cairnfs::fs
