#include <sys/xattr.h>

#include <cerrno>
#include <string>
#include <string_view>
#include <vector>

#include "cairnfs/cairnfs.h"
#include "fs/attributes.h"
#include "fuse/admitted.h"
#include "fuse/ops.h"
#include "fuse/reply.h"
#include "fuse/session.h"

namespace cairnfs::fuse {
namespace {

using XattrMode = meta::Namespace::XattrMode;

// 0, or the errno that ext4 gives for such a name. POSIX ACLs ("system.") would have to be enforced, not only stored;
// default_permissions knows mode bits alone.
int NameErrno(std::string_view name) {
  for (std::string_view prefix : {"user.", "trusted.", "security."}) {
    if (name.starts_with(prefix)) return name.size() == prefix.size() ? EINVAL : 0;
  }
  return EOPNOTSUPP;
}

// `wanted` 0 asks for the size.
void ReplyValue(fuse_req_t request, std::string_view value, size_t wanted) {
  if (wanted == 0) {
    fuse_reply_xattr(request, value.size());
  } else if (value.size() > wanted) {
    fuse_reply_err(request, ERANGE);
  } else {
    fuse_reply_buf(request, value.data(), value.size());
  }
}

void ReplyNames(fuse_req_t request, const Result<std::vector<std::string>>& names, size_t size) {
  if (!names.ok()) return ReplyInodeError(request, names.error());
  std::string list;
  const bool privileged = fuse_req_ctx(request)->uid == 0;
  for (const std::string& name : *names) {
    // As in the kernel's own filesystems, a caller that may not read them does not see them.
    if (!privileged && name.starts_with("trusted.")) continue;
    list.append(name).push_back('\0');
  }
  ReplyValue(request, list, size);
}

}  // namespace

void OpSetXattr(fuse_req_t request, fuse_ino_t inode, const char* name, const char* value, size_t size, int flags) {
  XattrMode mode = XattrMode::kSet;
  if (flags == XATTR_CREATE) {
    mode = XattrMode::kCreate;
  } else if (flags == XATTR_REPLACE) {
    mode = XattrMode::kReplace;
  } else if (flags != 0) {
    fuse_reply_err(request, EINVAL);
    return;
  }
  if (int error = NameErrno(name); error != 0) {
    fuse_reply_err(request, error);
    return;
  }
  WhenAdmitted(request, fs::NameChange::kMakes,
               [request, inode, name = std::string(name), value = std::string(value, size), mode](
                   fs::FileSystem& filesystem, const fs::Caller& caller) {
                 fs::Attributes& attributes = filesystem.attributes();
                 if (name == CAIRNFS_XATTR_SEALED && value == "1") {
                   return attributes.Seal(caller, InodeId{inode}, [request](const Status& sealed) {
                     if (!sealed.ok()) return ReplyInodeError(request, sealed.error());
                     fuse_reply_err(request, 0);
                   });
                 }
                 auto act = [request, &attributes, caller, inode, name, value, mode](const Status& may) {
                   Status set = may.ok() ? attributes.SetXattr(caller, InodeId{inode}, name, value, mode) : may;
                   if (!set.ok()) return ReplyInodeError(request, set.error());
                   attributes.WhenItCounts(name, caller, [request] { fuse_reply_err(request, 0); });
                 };
                 attributes.WhenItMayBeSet(InodeId{inode}, name, caller, std::move(act));
               });
}

void OpGetXattr(fuse_req_t request, fuse_ino_t inode, const char* name, size_t size) {
  if (int error = NameErrno(name); error != 0) {
    fuse_reply_err(request, error);
    return;
  }
  WhereItMayWait(
      request, [request, inode, name = std::string(name), size](fs::FileSystem& filesystem, const fs::Caller& caller) {
        auto reply = [request, size](Result<std::string> value) {
          if (!value.ok()) return ReplyInodeError(request, value.error());
          ReplyValue(request, *value, size);
        };
        filesystem.attributes().GetXattr(InodeId{inode}, name, reply, caller);
      });
}

void OpListXattr(fuse_req_t request, fuse_ino_t inode, size_t size) {
  WhereItMayWait(request, [request, inode, size](fs::FileSystem& filesystem, const fs::Caller& caller) {
    ReplyNames(request, filesystem.attributes().ListXattrs(caller.context, InodeId{inode}), size);
  });
}

void OpRemoveXattr(fuse_req_t request, fuse_ino_t inode, const char* name) {
  if (int error = NameErrno(name); error != 0) {
    fuse_reply_err(request, error);
    return;
  }
  WhenAdmitted(request, fs::NameChange::kShortens,
               [request, inode, name = std::string(name)](fs::FileSystem& filesystem, const fs::Caller& caller) {
                 fs::Attributes& attributes = filesystem.attributes();
                 auto act = [request, &attributes, caller, inode, name](const Status& may) {
                   const Status removed = may.ok() ? attributes.RemoveXattr(caller, InodeId{inode}, name) : may;
                   if (!removed.ok()) return ReplyInodeError(request, removed.error());
                   attributes.WhenItCounts(name, caller, [request] { fuse_reply_err(request, 0); });
                 };
                 if (name == CAIRNFS_XATTR_SEALED) return act({});
                 attributes.WhenItMayBeSet(InodeId{inode}, name, caller, std::move(act));
               });
}

}  // namespace cairnfs::fuse
