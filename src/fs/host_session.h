// HostSession: this host's session with the cluster. A change carries the session under which it began; it cannot be
// published after that session is lost. A host alone has none: HostSession itself stands for that.
#pragma once

#include <chrono>
#include <stop_token>

#include "base/result.h"
#include "fs/cluster_host.h"
#include "fs/handle.h"

namespace cairnfs::fs {

// All functions: any thread.
class HostSession {
 public:
  virtual ~HostSession() = default;
  // Waits until there is a session. kUnavailable: there was none for too long.
  virtual Status Await(const Context& /*context*/) const { return {}; }
  // Notes in a new handle the session under which it is opened.
  virtual void Stamp(Handle& /*handle*/) const {}
  // kIo: the host's session is another one now.
  virtual Status Check(uint64_t /*session*/) const { return {}; }
  // kIo: the file was opened for writing under a session that is lost, or the store went back since.
  virtual Status Check(const Handle& /*handle*/) const { return {}; }
  // kIo: what is read through it may not be what its reader takes it for. The store went back since it was opened, and
  // the inode's number may be another file's now; or the session is lost, and a lock with it under which it is read.
  virtual Status CheckRead(const Handle& /*handle*/) const { return {}; }
  // kIo: the session is lost, and with it all locks that the handle had.
  virtual Status CheckLocks(const Handle& /*handle*/) const { return {}; }
  // From now on nothing waits for other hosts.
  virtual void EndWaits() {}
};

class SharedSession final : public HostSession {
 public:
  // `host` outlives it. `stop` is requested when the filesystem stops. `wait_max` bounds Await.
  SharedSession(ClusterHost& host, std::stop_token stop, std::chrono::milliseconds wait_max)
      : host_(host), stop_(std::move(stop)), wait_max_(wait_max) {}

  Status Await(const Context& context) const override;
  void Stamp(Handle& handle) const override;
  Status Check(uint64_t session) const override;
  Status Check(const Handle& handle) const override;
  Status CheckRead(const Handle& handle) const override;
  Status CheckLocks(const Handle& handle) const override;
  void EndWaits() override { waits_end_.request_stop(); }

  // Requested by EndWaits.
  std::stop_token waits_end() const { return waits_end_.get_token(); }
  bool waits_ended() const { return waits_end_.stop_requested(); }
  // Whether a wait for the answer to a publish of the file must end: the server stops, and the store may never answer.
  bool GivesUpOn(const SharedContent& shared) const;

 private:
  Status CheckStore(const Handle& handle) const;

  ClusterHost& host_;
  const std::stop_token stop_;
  const std::chrono::milliseconds wait_max_;
  std::stop_source waits_end_;
};

}  // namespace cairnfs::fs
