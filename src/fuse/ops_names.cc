#include <linux/fs.h>
#include <sys/stat.h>

#include <string>

#include "fs/atomic_files.h"
#include "fs/names.h"
#include "fuse/admitted.h"
#include "fuse/interrupt.h"
#include "fuse/ops.h"
#include "fuse/receiver.h"
#include "fuse/reply.h"
#include "fuse/session.h"

namespace cairnfs::fuse {
namespace {

meta::CreateParams ParamsOf(fuse_req_t request, uint32_t mode) {
  const fuse_ctx* caller = fuse_req_ctx(request);
  meta::CreateParams params;
  params.mode = mode;
  params.uid = caller->uid;
  params.gid = caller->gid;
  return params;
}

void MakeNodeAndReply(fuse_req_t request, fuse_ino_t parent, const char* name, const meta::CreateParams& params) {
  WhenAdmitted(
      request, fs::NameChange::kMakes,
      [request, parent, name = std::string(name), params](fs::FileSystem& filesystem, const fs::Caller& caller) {
        ReplyEntry(request, filesystem.names().MakeNode(caller.context, InodeId{parent}, name, params), WhenOld::kTaken,
                   {InodeId{parent}, name});
      });
}

}  // namespace

void OpLookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  const auto thread = static_cast<uint32_t>(fuse_req_ctx(request)->pid);
  fs::AtomicFiles& atomic_files = SessionOf(request).filesystem().atomic_files();
  const bool is_asked = IsAskedEachTime(request, InodeId{parent}, name);
  // A file by its handle.
  const bool is_beside = Receiver::Current().is_beside() && std::string_view(name) == ".";
  auto reply = [request, parent, is_asked, is_beside, name = std::string(name)](const Result<meta::Attr>& attr) {
    const EntryPlace place{InodeId{parent}, name, is_asked, is_beside};
    if (attr.ok() || attr.error().code != ErrorCode::kNotFound) {
      return ReplyEntry(request, attr, WhenOld::kDropped, place);
    }
    // Inode 0: the kernel remembers that the name is absent.
    fuse_entry_param absent{};
    absent.entry_timeout = CacheTimesOf(request, {}, place).entry_seconds;
    fuse_reply_entry(request, &absent);
  };
  if (atomic_files.IsSentBack(thread)) {
    auto look_up = [request, parent, name = std::string(name), reply](fs::FileSystem& filesystem,
                                                                      const fs::Caller& caller) {
      const fs::AtomicFiles::Opener opener{caller, CredentialsOf(request)};
      filesystem.atomic_files().LookUpSentBack(opener, InodeId{parent}, name, reply);
    };
    return WhereItMayWait(request, std::move(look_up));
  }
  auto read = [parent, thread, name = std::string(name)](fs::FileSystem& filesystem, const Context& context) {
    return filesystem.atomic_files().Lookup(context, thread, InodeId{parent}, name);
  };
  AtOnceOrWhereItMayWait(request, std::move(read), std::move(reply));
}

void OpForget(fuse_req_t request, fuse_ino_t inode, uint64_t count) {
  SessionOf(request).filesystem().names().Forget(InodeId{inode}, count);
  fuse_reply_none(request);
}

void OpForgetMulti(fuse_req_t request, size_t count, fuse_forget_data* forgets) {
  fs::FileSystem& filesystem = SessionOf(request).filesystem();
  for (size_t i = 0; i < count; ++i) filesystem.names().Forget(InodeId{forgets[i].ino}, forgets[i].nlookup);
  fuse_reply_none(request);
}

void OpReadLink(fuse_req_t request, fuse_ino_t inode) {
  WhereItMayWait(request, [request, inode](fs::FileSystem& filesystem, const fs::Caller& caller) {
    auto target = filesystem.names().ReadLink(caller.context, InodeId{inode});
    if (!target.ok()) return ReplyInodeError(request, target.error());
    fuse_reply_readlink(request, target->c_str());
  });
}

void OpMknod(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, dev_t device) {
  if ((mode & S_IFMT) == 0) mode |= S_IFREG;
  meta::CreateParams params = ParamsOf(request, mode);
  params.rdev = device;
  MakeNodeAndReply(request, parent, name, params);
}

void OpMkdir(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode) {
  MakeNodeAndReply(request, parent, name, ParamsOf(request, (mode & 07777) | S_IFDIR));
}

void OpSymlink(fuse_req_t request, const char* target, fuse_ino_t parent, const char* name) {
  meta::CreateParams params = ParamsOf(request, 0777 | S_IFLNK);
  params.symlink_target = target;
  MakeNodeAndReply(request, parent, name, params);
}

void OpLink(fuse_req_t request, fuse_ino_t inode, fuse_ino_t new_parent, const char* new_name) {
  WhenAdmitted(
      request, fs::NameChange::kMakes,
      [request, inode, new_parent, name = std::string(new_name)](fs::FileSystem& filesystem, const fs::Caller& caller) {
        auto reply = [request, new_parent, name](const Result<meta::Attr>& attr) {
          ReplyEntry(request, attr, WhenOld::kTaken, {InodeId{new_parent}, name});
        };
        filesystem.names().Link(InodeId{inode}, InodeId{new_parent}, name, std::move(reply), caller);
      });
}

void OpUnlink(fuse_req_t request, fuse_ino_t parent, const char* name) {
  WhenAdmitted(request, fs::NameChange::kRemoves,
               [request, parent, name = std::string(name)](fs::FileSystem& filesystem, const fs::Caller& caller) {
                 if (filesystem.atomic_files().Unlink(caller.pid, InodeId{parent}, name)) {
                   return ReplyStatus(request, {});
                 }
                 ReplyStatus(request, filesystem.names().Unlink(caller.context, InodeId{parent}, name, caller.uid));
               });
}

void OpRmdir(fuse_req_t request, fuse_ino_t parent, const char* name) {
  WhenAdmitted(request, fs::NameChange::kRemoves,
               [request, parent, name = std::string(name)](fs::FileSystem& filesystem, const fs::Caller& caller) {
                 filesystem.names().Rmdir(InodeId{parent}, name, caller,
                                          [request](const Status& status) { ReplyStatus(request, status); });
               });
}

void OpRename(fuse_req_t request, fuse_ino_t from_parent, const char* from_name, fuse_ino_t to_parent,
              const char* to_name, unsigned flags) {
  meta::RenameParams params;
  params.from_parent = InodeId{from_parent};
  params.from_name = from_name;
  params.to_parent = InodeId{to_parent};
  params.to_name = to_name;
  if (flags == RENAME_NOREPLACE) {
    params.mode = meta::RenameMode::kNoReplace;
  } else if (flags == RENAME_EXCHANGE) {
    params.mode = meta::RenameMode::kExchange;
  } else if (flags != 0) {
    fuse_reply_err(request, EINVAL);
    return;
  }
  WhereItMayWait(request, [request, params](fs::FileSystem& filesystem, const fs::Caller& caller) {
    fs::AtomicFiles& atomic_files = filesystem.atomic_files();
    const auto named = atomic_files.BeginRename(caller.pid, params);
    if (!named.ok()) {
      atomic_files.NoteAnswered(params);
      return ReplyError(request, named.error());
    }
    auto reply = [request, &atomic_files, params, named = *named, thread = caller.pid](const Result<void>& status) {
      if (status.ok()) atomic_files.EndRename(thread, params, named);
      atomic_files.NoteAnswered(params);
      ReplyStatus(request, status);
    };
    filesystem.names().Rename(*named ? **named : params, caller, std::move(reply));
  });
}

}  // namespace cairnfs::fuse
