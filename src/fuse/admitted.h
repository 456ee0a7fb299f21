// Lets a request wait, for the disk or for other hosts, without holding up the thread that received it.
#pragma once

#include <fuse_lowlevel.h>

#include <functional>
#include <utility>

#include "fs/filesystem.h"
#include "fs/names.h"
#include "fuse/interrupt.h"
#include "fuse/reply.h"
#include "fuse/session.h"

namespace cairnfs::fuse {

using RunOnAThread = void (fs::FileSystem::*)(const fs::Caller& caller, std::function<void()> task,
                                              fs::Done<void> refused);

// Calls `act(filesystem, caller)` where `run` runs it: perhaps on another thread, after the handler has returned. So
// `act` must own what it needs of the request's message. When the caller is killed meanwhile, `act` soon fails, or is
// not called and the request is answered with EINTR.
template <typename Act>
void RunBy(RunOnAThread run, fuse_req_t request, Act act) {
  fs::FileSystem& filesystem = SessionOf(request).filesystem();
  const fs::Caller caller = CallerOf(request);
  (filesystem.*run)(
      caller, [&filesystem, caller, act = std::move(act)] { act(filesystem, caller); },
      [request](const Status& killed) { ReplyError(request, killed.error()); });
}

// That is where it may wait for other hosts (FileSystem::RunBlocking).
template <typename Act>
void WhereItMayWait(fuse_req_t request, Act act) {
  RunBy(&fs::FileSystem::RunBlocking, request, std::move(act));
}

// And where it may wait for a round, or read much (FileSystem::RunToWait).
template <typename Act>
void WhereItMayWaitLong(fuse_req_t request, Act act) {
  RunBy(&fs::FileSystem::RunToWait, request, std::move(act));
}

// Calls `reply(read(filesystem, context))`: at once on this thread where `read` has its answer at hand, as that about
// names which this host holds a delegation on; else where it may wait. With a context that is over `read` must wait for
// nothing, and give kUnavailable when it would have to. Both must own what they need of the request's message.
template <typename Read, typename Reply>
void AtOnceOrWhereItMayWait(fuse_req_t request, Read read, Reply reply) {
  const auto at_hand = read(SessionOf(request).filesystem(), Context::Over());
  if (at_hand.ok() || at_hand.error().code != ErrorCode::kUnavailable) return reply(at_hand);
  WhereItMayWait(
      request, [read = std::move(read), reply = std::move(reply)](
                   fs::FileSystem& filesystem, const fs::Caller& caller) { reply(read(filesystem, caller.context)); });
}

// Calls `act(filesystem, caller)` once the change is let in (fs::Names::WhenAdmitted), perhaps on another thread and
// after the handler has returned. So `act` must own what it needs of the request's message. Replies when the change is
// refused.
template <typename Act>
void WhenAdmitted(fuse_req_t request, fs::NameChange change, Act act) {
  WhereItMayWait(request,
                 [request, change, act = std::move(act)](fs::FileSystem& filesystem, const fs::Caller& caller) {
                   auto go = [request, &filesystem, caller, act](const Status& admitted) {
                     if (!admitted.ok()) return ReplyError(request, admitted.error());
                     act(filesystem, caller);
                   };
                   filesystem.names().WhenAdmitted(change, std::move(go), caller);
                 });
}

}  // namespace cairnfs::fuse
