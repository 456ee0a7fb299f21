#include "fs/host_session.h"

namespace cairnfs::fs {

Status SharedSession::Await(const Context& context) const {
  if (host_.session() != 0) return {};
  const Context until_stop = context.WithStop(waits_end()).WithStop(stop_).WithTimeout(wait_max_);
  return host_.AwaitSession(until_stop) ? Status() : Status(NoSession());
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

Status SharedSession::CheckRead(const Handle& handle) const {
  CAIRNFS_RETURN_IF_ERROR(CheckStore(handle));
  return handle.has_locked ? CheckLocks(handle) : Status();
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

bool SharedSession::GivesUpOn(const SharedContent& shared) const { return waits_ended() && shared.is_in_doubt; }

}  // namespace cairnfs::fs
