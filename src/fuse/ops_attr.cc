#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cerrno>

#include "fs/atomic_files.h"
#include "fs/attributes.h"
#include "fs/maintenance.h"
#include "fs/names.h"
#include "fs/open_files.h"
#include "fs/quota_settings.h"
#include "fuse/admitted.h"
#include "fuse/ops.h"
#include "fuse/receiver.h"
#include "fuse/reply.h"
#include "fuse/session.h"

namespace cairnfs::fuse {
namespace {

// Kernel 5.11; not in Debian 12's linux/fuse.h. A truncation takes set-user-id and set-group-id away.
constexpr uint32_t kFattrKillSuidGid = 1U << 11;

Timestamp TimestampOf(const timespec& time) { return {time.tv_sec, static_cast<uint32_t>(time.tv_nsec)}; }

void ReplySpace(fuse_req_t request, const Result<fs::FsSpace>& space) {
  if (!space.ok()) return ReplyError(request, space.error());
  const fs::FsSpace& told = *space;
  struct statvfs out {};
  out.f_bsize = kPageBytes;
  out.f_frsize = kPageBytes;
  out.f_blocks = told.total_bytes / kPageBytes;
  out.f_bfree = told.free_bytes / kPageBytes;
  out.f_bavail = told.available_bytes / kPageBytes;
  out.f_files = told.inodes_total;
  out.f_ffree = told.inodes_free;
  out.f_favail = told.inodes_free;
  out.f_namemax = kNameBytesMax;
  fuse_reply_statfs(request, &out);
}

}  // namespace

fs::SetAttrRequest SetAttrRequestOf(uint32_t valid, const struct stat& values) {
  fs::SetAttrRequest changes;
  if (valid & FATTR_MODE) changes.mode = values.st_mode & 07777;
  if (valid & FATTR_UID) changes.uid = values.st_uid;
  if (valid & FATTR_GID) changes.gid = values.st_gid;
  if (valid & FATTR_SIZE) changes.size = static_cast<uint64_t>(values.st_size);
  if (valid & FATTR_ATIME_NOW) {
    changes.atime_now = true;
  } else if (valid & FATTR_ATIME) {
    changes.atime = TimestampOf(values.st_atim);
  }
  if (valid & FATTR_MTIME_NOW) {
    changes.mtime_now = true;
  } else if (valid & FATTR_MTIME) {
    changes.mtime = TimestampOf(values.st_mtim);
  }
  // With HANDLE_KILLPRIV_V2 the daemon must take the bits away on every chown. chown(-1, -1) comes as a request that
  // sets nothing.
  constexpr uint32_t kWithoutMeaning = FATTR_FH | FATTR_LOCKOWNER;
  const bool is_chown = (valid & (FATTR_UID | FATTR_GID)) != 0 || (valid & ~kWithoutMeaning) == 0;
  changes.kill_suid_sgid = is_chown || (valid & kFattrKillSuidGid) != 0;
  return changes;
}

void OpGetAttr(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
  auto read = [inode](fs::FileSystem& filesystem, const Context& context) {
    return filesystem.names().GetAttr(context, InodeId{inode});
  };
  AtOnceOrWhereItMayWait(request, read,
                         [request](const Result<meta::Attr>& attr) { ReplyAttr(request, attr, WhenOld::kDropped); });
}

void OpSetAttr(fuse_req_t request, fuse_ino_t inode, struct stat* values, int, fuse_file_info* file) {
  // libfuse masks bits out of `to_set` that are needed here.
  const uint32_t valid = Receiver::Current().Body<fuse_setattr_in>().valid;
  fs::SetAttrRequest changes = SetAttrRequestOf(valid, *values);
  if (file != nullptr) changes.handle = file->fh;
  const bool is_beside = Receiver::Current().is_beside(), is_by_name = changes.size && file == nullptr;
  if (is_by_name && SessionOf(request).filesystem().open_files().MustCutElsewhere(InodeId{inode}, is_beside)) {
    return (void)fuse_reply_err(request, ESTALE);  // the kernel looks it up once more
  }
  WhereItMayWait(request, [request, inode, changes](fs::FileSystem& filesystem, const fs::Caller& caller) {
    auto reply = [request, inode, &filesystem, cuts = changes.size.has_value()](const Result<meta::Attr>& attr) {
      if (!attr.ok() && cuts) filesystem.atomic_files().NoteWriteFailed(InodeId{inode}, attr.error());
      ReplyAttr(request, attr, WhenOld::kTaken);
    };
    filesystem.attributes().SetAttr(InodeId{inode}, changes, std::move(reply), caller);
  });
}

void OpStatFs(fuse_req_t request, fuse_ino_t inode) {
  WhereItMayWait(request, [request, inode](fs::FileSystem& filesystem, const fs::Caller& caller) {
    const Result<fs::FsSpace> space = filesystem.maintenance().GetSpace();
    if (!space.ok()) return ReplySpace(request, space);
    ReplySpace(request, filesystem.quotas().Bounded(caller.context, InodeId{inode}, *space));
  });
}

}  // namespace cairnfs::fuse
