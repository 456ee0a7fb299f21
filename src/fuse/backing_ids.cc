#include "fuse/backing_ids.h"

#include <linux/fuse.h>
#include <sys/ioctl.h>

#include <cerrno>

#include "base/log.h"
#include "fuse/node_ids.h"

namespace cairnfs::fuse {
namespace {

// Not in Debian 12's linux/fuse.h.
struct BackingMap {
  int32_t fd;
  uint32_t flags;
  uint64_t padding;
};
constexpr unsigned long kBackingOpen = _IOW(FUSE_DEV_IOC_MAGIC, 1, BackingMap);
constexpr unsigned long kBackingClose = _IOW(FUSE_DEV_IOC_MAGIC, 2, uint32_t);
static_assert(sizeof(BackingMap) == 16);

}  // namespace

Result<fs::BackingId> BackingIds::Register(int fd) {
  BackingMap map{.fd = fd, .flags = 0, .padding = 0};
  const int id = ioctl(device_.fd(), kBackingOpen, &map);
  if (id > 0) return id;
  if (id == 0) return MakeError(ErrorCode::kIo, "FUSE_DEV_IOC_BACKING_OPEN gave the id 0");
  return ErrnoError(errno == ENOTTY ? ENOSYS : errno, "FUSE_DEV_IOC_BACKING_OPEN");
}

void BackingIds::Unregister(fs::BackingId id) {
  auto number = static_cast<uint32_t>(id);
  if (ioctl(device_.fd(), kBackingClose, &number) == 0) return;
  // Its memory stays taken until the mount ends.
  spdlog::error("FUSE_DEV_IOC_BACKING_CLOSE of {}: {}", id, ErrnoError(errno, "ioctl").message);
}

void BackingIds::ForgetAttributes(InodeId inode) {
  for (const bool is_beside : {false, true}) forget_attributes_(NodeIdOf(inode, is_beside));
}

}  // namespace cairnfs::fuse
