// The ioctls of cairnfs/cairnfs.h. The kernel copies as many bytes as the command's number says.
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>

#include "cairnfs/cairnfs.h"
#include "fs/tickets.h"
#include "fuse/admitted.h"
#include "fuse/ops.h"
#include "fuse/reply.h"

namespace cairnfs::fuse {
namespace {

// Copied: the message goes when the handler returns, and may lie at any address. nullopt: it is not whole.
template <typename Body>
std::optional<Body> BodyOf(const void* in, size_t in_size, size_t out_size) {
  if (in == nullptr || in_size < sizeof(Body) || out_size < sizeof(Body)) return std::nullopt;
  Body body;
  std::memcpy(&body, in, sizeof body);
  return body;
}

template <typename Body>
void ReplyBody(fuse_req_t request, const Body& body) {
  fuse_reply_ioctl(request, 0, &body, sizeof body);
}

Context AtOnce(const fs::Caller& caller) { return caller.context.WithDeadline(Clock::time_point::min()); }

void DeferCommit(fuse_req_t request, InodeId directory, const cairnfs_defer_commit& asked) {
  const size_t name_size = strnlen(asked.final_name, sizeof asked.final_name);
  if (asked.reserved != 0 || name_size == sizeof asked.final_name) {
    fuse_reply_err(request, EINVAL);
    return;
  }
  WhenAdmitted(request, fs::NameChange::kMakes, [request, directory, asked](fs::FileSystem&, const fs::Caller&) {
    // It is searched for and checked in many directories.
    WhereItMayWaitLong(request, [request, directory, asked](fs::FileSystem& filesystem, const fs::Caller& caller) {
      fs::Tickets::Request wanted{.who = CredentialsOf(request),
                                  .directory = directory,
                                  .to_parent = std::nullopt,
                                  .to_name = asked.final_name,
                                  .under_way_max = asked.under_way_max};
      if (asked.final_parent != 0) wanted.to_parent = InodeId{asked.final_parent};
      // These threads are few: they wait for no other commit to end.
      const auto ticket = filesystem.tickets().Take(wanted, AtOnce(caller));
      if (!ticket.ok()) return ReplyError(request, ticket.error());
      cairnfs_defer_commit told = asked;
      told.ticket = *ticket;
      ReplyBody(request, told);
    });
  });
}

void TellResult(fuse_req_t request, const cairnfs_commit_result& asked) {
  if (asked.reserved != 0) {
    fuse_reply_err(request, EINVAL);
    return;
  }
  // That a result was given is to be durable.
  WhereItMayWaitLong(request, [request, asked](fs::FileSystem& filesystem, const fs::Caller& caller) {
    const auto ticket = filesystem.tickets().Await(AtOnce(caller), asked.ticket, caller.uid);
    if (!ticket.ok()) return ReplyError(request, ticket.error());
    cairnfs_commit_result told = {
        .ticket = asked.ticket, .state = static_cast<uint32_t>(ticket->state), .reserved = 0, .reason = {}};
    ticket->reason.copy(told.reason, sizeof told.reason - 1);
    ReplyBody(request, told);
  });
}

}  // namespace

void OpIoctl(fuse_req_t request, fuse_ino_t inode, unsigned command, void*, fuse_file_info*, unsigned flags,
             const void* in, size_t in_size, size_t out_size) {
  if (command == CAIRNFS_IOC_DEFER_COMMIT) {
    const auto asked = BodyOf<cairnfs_defer_commit>(in, in_size, out_size);
    if ((flags & FUSE_IOCTL_DIR) == 0) {
      fuse_reply_err(request, ENOTDIR);
    } else if (!asked) {
      fuse_reply_err(request, EINVAL);
    } else {
      DeferCommit(request, InodeId{inode}, *asked);
    }
  } else if (command == CAIRNFS_IOC_COMMIT_RESULT) {
    const auto asked = BodyOf<cairnfs_commit_result>(in, in_size, out_size);
    if (!asked) {
      fuse_reply_err(request, EINVAL);
    } else {
      TellResult(request, *asked);
    }
  } else {
    fuse_reply_err(request, ENOTTY);
  }
}

}  // namespace cairnfs::fuse
