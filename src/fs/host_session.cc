#include "fs/host_session.h"

#include "base/clock.h"
#include "kv/patience.h"

namespace cairnfs::fs {
namespace {

constexpr auto kSessionLook = std::chrono::milliseconds(10);

}  // namespace

Status SharedSession::Await() const {
  const auto deadline = Clock::Now() + wait_max_;
  while (host_.session() == 0) {
    if (waits_ended_ || stop_.stop_requested() || Clock::Now() >= deadline) return NoSession();
    if (!kv::Patience::Sleep(nullptr, kSessionLook)) return NoSession();
  }
  return {};
}

void SharedSession::Stamp(Handle& handle) const {
  handle.session = host_.session();
  handle.store_state = host_.store_state();
}

Status SharedSession::Check(uint64_t session) const {
  if (session == host_.session()) return {};
  return SessionLost("what was not published is lost, try again");
}

Status SharedSession::Check(const Handle& handle) const {
  CAIRNFS_RETURN_IF_ERROR(CheckStore(handle));
  if (!handle.flags.write || handle.session == host_.session()) return {};
  return SessionLost("what was not published is lost, open the file again");
}

Status SharedSession::CheckStore(const Handle& handle) const {
  if (handle.store_state == host_.store_state()) return {};
  return MakeError(ErrorCode::kIo,
                   "the cluster's store went back to an older state, in which the file may be another: open it again");
}

Status SharedSession::CheckLocks(const Handle& handle) const {
  if (handle.session == host_.session()) return {};
  return SessionLost("its locks are lost, open the file again");
}

bool SharedSession::GivesUpOn(const SharedContent& shared) const {
  return kv::Patience::IsWaitOver(nullptr) || (waits_ended_ && shared.is_unanswered);
}

}  // namespace cairnfs::fs
