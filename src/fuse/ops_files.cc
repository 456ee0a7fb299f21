#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <utility>

#include "fs/atomic_files.h"
#include "fs/names.h"
#include "fs/open_files.h"
#include "fs/permissions.h"
#include "fuse/admitted.h"
#include "fuse/interrupt.h"
#include "fuse/ops.h"
#include "fuse/receiver.h"
#include "fuse/reply.h"
#include "fuse/session.h"

namespace cairnfs::fuse {
namespace {

// The kernel's FMODE_EXEC, which no open(2) can set: execve(2) opens the file.
constexpr int kOpenForExec = 0x20;

void OpenAndReply(fuse_req_t request, fs::FileSystem& filesystem, const fs::Caller& caller, InodeId inode,
                  const fs::OpenFlags& flags) {
  auto reply = [request, inode](Result<fs::HandleId> handle) {
    // The kernel's own error for a program that is open for writing.
    if (!handle.ok() && handle.error().code == ErrorCode::kBusy) return (void)fuse_reply_err(request, ETXTBSY);
    if (!handle.ok()) return ReplyInodeError(request, handle.error());
    ReplyOpen(request, inode, *handle);
  };
  filesystem.atomic_files().Open(inode, flags, reply, UntilStop(request, caller));
}

struct CreateRequest {
  fs::Caller caller;
  InodeId parent;
  std::string name;
  meta::CreateParams params;
  int open_flags = 0;
  bool kills_set_id = false;  // where the name is there after all
  // Other hosts may make and remove the name between our calls.
  int tries_left = 100;
  bool has_waited = false;  // for room in a quota
};

void CreateAndReply(fuse_req_t request, fs::FileSystem& filesystem, CreateRequest create);

// Answers a CREATE whose name is there after all, and whose file may be opened as it is.
void OpenExistingAndReply(fuse_req_t request, fs::FileSystem& filesystem, CreateRequest create) {
  auto fail = [request, &filesystem](const Error& error, CreateRequest again) {
    const bool is_gone = error.code == ErrorCode::kNotFound || error.code == ErrorCode::kStale;
    if (!is_gone || again.tries_left-- == 0) return ReplyError(request, error);
    CreateAndReply(request, filesystem, std::move(again));
  };
  auto attr = filesystem.names().Lookup(create.caller.context, create.parent, create.name);
  if (!attr.ok()) return fail(attr.error(), std::move(create));
  if ((attr->mode & S_IFMT) != S_IFREG) {
    // The kernel took the name for absent, and accepts only a new file. This error makes it look up again.
    filesystem.names().Forget(attr->inode, 1);
    return (void)fuse_reply_err(request, ESTALE);
  }
  fs::OpenFlags flags = OpenFlagsOf(create.open_flags);
  flags.kills_set_id = create.kills_set_id;
  // The answer names the node id: none need be sent to another.
  flags.is_beside = NamesBeside(request, *attr) || filesystem.open_files().MustGoBeside(attr->inode);
  // The kernel takes the file for a new one, and does not judge its mode.
  if (Status allowed = fs::CheckMayOpen(CredentialsOf(request), *attr, flags); !allowed.ok()) {
    filesystem.names().Forget(attr->inode, 1);
    return (void)fuse_reply_err(request, EACCES);
  }
  auto reply = [request, &filesystem, attr = *attr, create, fail,
                is_beside = flags.is_beside](Result<fs::HandleId> handle) mutable {
    if (!handle.ok()) {
      filesystem.names().Forget(attr.inode, 1);
      return fail(handle.error(), std::move(create));
    }
    auto now = filesystem.names().GetAttr(create.caller.context, attr.inode);
    EntryPlace place{create.parent, create.name};
    place.is_beside = is_beside;
    ReplyCreate(request, {now.ok() ? *now : attr, *handle}, place);
  };
  filesystem.open_files().Open(attr->inode, flags, std::move(reply), UntilStop(request, create.caller));
}

// Answers a CREATE with a file that was made without a name.
void OpenMadeAndReply(fuse_req_t request, fs::FileSystem& filesystem, const CreateRequest& create,
                      const meta::Attr& made) {
  auto reply = [request, &filesystem, made, create](Result<fs::HandleId> handle) {
    if (!handle.ok()) {
      filesystem.names().Forget(made.inode, 1);
      return ReplyError(request, handle.error());
    }
    auto now = filesystem.names().GetAttr(create.caller.context, made.inode);
    ReplyCreate(request, {now.ok() ? *now : made, *handle}, {create.parent, create.name});
  };
  filesystem.atomic_files().Open(made.inode, OpenFlagsOf(create.open_flags), reply, UntilStop(request, create.caller));
}

// What a quota refused is tried once more, when what can be made room of is.
void AnswerUnlessThereIsRoom(fuse_req_t request, fs::FileSystem& filesystem, CreateRequest create, const Error& why) {
  if (why.code != ErrorCode::kQuotaExceeded || std::exchange(create.has_waited, true)) return ReplyError(request, why);
  const fs::Caller caller = UntilStop(request, create.caller);
  auto again = [request, &filesystem, create](const Status& may) {
    if (!may.ok()) return ReplyError(request, may.error());
    CreateAndReply(request, filesystem, create);
  };
  filesystem.open_files().AwaitMayCreate(create.parent, caller, std::move(again));
}

void CreateAndReply(fuse_req_t request, fs::FileSystem& filesystem, CreateRequest create) {
  if (!(create.open_flags & O_EXCL)) {
    const auto made = filesystem.atomic_files().Create({create.caller, CredentialsOf(request)}, create.parent,
                                                       create.name, create.params, OpenFlagsOf(create.open_flags));
    if (!made.ok()) return AnswerUnlessThereIsRoom(request, filesystem, std::move(create), made.error());
    if (*made) return OpenMadeAndReply(request, filesystem, create, **made);
  }
  auto created = filesystem.open_files().Create(create.caller.context, create.parent, create.name, create.params,
                                                OpenFlagsOf(create.open_flags));
  if (created.ok()) return ReplyCreate(request, *created, {create.parent, create.name});
  if (created.error().code == ErrorCode::kAlreadyExists && !(create.open_flags & O_EXCL)) {
    return OpenExistingAndReply(request, filesystem, std::move(create));
  }
  AnswerUnlessThereIsRoom(request, filesystem, std::move(create), created.error());
}

}  // namespace

fs::OpenFlags OpenFlagsOf(int flags) {
  fs::OpenFlags result;
  const int access = flags & O_ACCMODE;
  result.read = access != O_WRONLY;
  result.write = access != O_RDONLY;
  result.truncate = (flags & O_TRUNC) != 0;
  result.sync = (flags & O_DSYNC) != 0;  // O_SYNC includes its bit
  result.no_atime = (flags & O_NOATIME) != 0;
  result.executes = (flags & kOpenForExec) != 0;
  result.from_disk = !result.write && (flags & O_DIRECT) != 0 && (flags & O_SYNC) == O_SYNC;
  return result;
}

void OpOpen(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file) {
  fs::OpenFlags flags = OpenFlagsOf(file->flags);
  flags.kills_set_id = (Receiver::Current().Body<fuse_open_in>().open_flags & FUSE_OPEN_KILL_SUIDGID) != 0;
  flags.is_beside = Receiver::Current().is_beside();
  flags.may_pass = !flags.write && !flags.truncate && !flags.executes && !flags.from_disk;
  WhereItMayWait(request, [request, inode, flags](fs::FileSystem& filesystem, const fs::Caller& caller) {
    OpenAndReply(request, filesystem, caller, InodeId{inode}, flags);
  });
}

void OpCreate(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* file) {
  const fuse_ctx* context = fuse_req_ctx(request);
  meta::CreateParams params;
  params.mode = (mode & 07777) | S_IFREG;
  params.uid = context->uid;
  params.gid = context->gid;
  const bool kills_set_id = (Receiver::Current().Body<fuse_create_in>().open_flags & FUSE_OPEN_KILL_SUIDGID) != 0;
  CreateRequest create{.caller = {},
                       .parent = InodeId{parent},
                       .name = name,
                       .params = params,
                       .open_flags = file->flags,
                       .kills_set_id = kills_set_id};
  auto make = [request, create = std::move(create)](fs::FileSystem& filesystem, const fs::Caller& caller) {
    CreateRequest with_caller = create;
    with_caller.caller = caller;
    CreateAndReply(request, filesystem, std::move(with_caller));
  };
  WhenAdmitted(request, fs::NameChange::kMakes, std::move(make));
}

void OpFlush(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file) {
  SessionOf(request).filesystem().atomic_files().Flush(
      InodeId{inode}, {file->fh, file->lock_owner},
      [request](const Result<void>& status) { ReplyStatus(request, status); }, CallerOf(request));
}

void OpRelease(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file) {
  SessionOf(request).filesystem().atomic_files().Release(InodeId{inode}, file->fh);
  fuse_reply_err(request, 0);
}

void OpFsync(fuse_req_t request, fuse_ino_t inode, int, fuse_file_info* file) {
  const Receiver::Wait wait(Receiver::Current());
  fs::Caller caller = CallerOf(request);
  caller.lends_thread = wait.is_long();
  SessionOf(request).filesystem().open_files().Fsync(
      file->fh, InodeId{inode}, [request](const Result<void>& status) { ReplyStatus(request, status); }, caller);
}

}  // namespace cairnfs::fuse
