#include <fcntl.h>
#include <sys/stat.h>

#include <string>

#include "fuse/admitted.h"
#include "fuse/ops.h"
#include "fuse/receiver.h"
#include "fuse/reply.h"
#include "fuse/session.h"

namespace cairnfs::fuse {
namespace {

void OpenAndReply(fuse_req_t request, InodeId inode, const fs::OpenFlags& flags) {
  SessionOf(request).filesystem().Open(inode, flags, [request, inode](Result<fs::HandleId> handle) {
    if (!handle.ok()) return ReplyError(request, handle.error());
    ReplyOpen(request, inode, *handle);
  });
}

// CREATE of a name that is there after all and may be opened as it is.
void OpenExistingAndReply(fuse_req_t request, fs::FileSystem& filesystem, InodeId parent, const std::string& name,
                          const fs::OpenFlags& flags) {
  auto attr = filesystem.Lookup(parent, name);
  if (!attr.ok()) return ReplyError(request, attr.error());
  filesystem.Open(attr->inode, flags, [request, &filesystem, attr = *attr](Result<fs::HandleId> handle) {
    if (!handle.ok()) {
      filesystem.Forget(attr.inode, 1);
      return ReplyError(request, handle.error());
    }
    auto now = filesystem.GetAttr(attr.inode);
    ReplyCreate(request, {now.ok() ? *now : attr, *handle});
  });
}

}  // namespace

fs::OpenFlags OpenFlagsOf(int flags) {
  fs::OpenFlags result;
  const int access = flags & O_ACCMODE;
  result.read = access != O_WRONLY;
  result.write = access != O_RDONLY;
  result.truncate = (flags & O_TRUNC) != 0;
  result.sync = (flags & O_DSYNC) != 0;  // O_SYNC includes its bit
  return result;
}

void OpOpen(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file) {
  const fs::OpenFlags flags = OpenFlagsOf(file->flags);
  const bool kill = (Receiver::Body<fuse_open_in>().open_flags & FUSE_OPEN_KILL_SUIDGID) != 0;
  if (!kill) return OpenAndReply(request, InodeId{inode}, flags);
  fs::SetAttrRequest changes;
  changes.kill_suid_sgid = true;
  SessionOf(request).filesystem().SetAttr(InodeId{inode}, changes, [request, inode, flags](Result<meta::Attr> attr) {
    if (!attr.ok()) return ReplyError(request, attr.error());
    OpenAndReply(request, InodeId{inode}, flags);
  });
}

void OpCreate(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* file) {
  const fuse_ctx* caller = fuse_req_ctx(request);
  meta::CreateParams params;
  params.mode = (mode & 07777) | S_IFREG;
  params.uid = caller->uid;
  params.gid = caller->gid;
  auto create = [request, parent = InodeId{parent}, name = std::string(name), params,
                 open_flags = file->flags](fs::FileSystem& filesystem) {
    const fs::OpenFlags flags = OpenFlagsOf(open_flags);
    auto created = filesystem.Create(parent, name, params, flags);
    if (created.ok()) return ReplyCreate(request, *created);
    if (created.error().code == ErrorCode::kAlreadyExists && !(open_flags & O_EXCL)) {
      return OpenExistingAndReply(request, filesystem, parent, name, flags);
    }
    ReplyError(request, created.error());
  };
  WhenAdmitted(request, fs::NameChange::kMakes, std::move(create));
}

void OpFlush(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file) {
  SessionOf(request).filesystem().Flush(file->fh, InodeId{inode},
                                        [request](Result<void> status) { ReplyStatus(request, status); });
}

void OpRelease(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file) {
  SessionOf(request).filesystem().Release(file->fh, InodeId{inode});
  fuse_reply_err(request, 0);
}

void OpFsync(fuse_req_t request, fuse_ino_t inode, int data_only, fuse_file_info* file) {
  SessionOf(request).filesystem().Fsync(file->fh, InodeId{inode}, data_only != 0,
                                        [request](Result<void> status) { ReplyStatus(request, status); });
}

}  // namespace cairnfs::fuse
