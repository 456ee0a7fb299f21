// HostSession: this host's session with the cluster. A change carries the session under which it began; it cannot be
// published after that session is lost. A host alone has none.
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
  // Waits until there is one: kUnavailable after a while.
  virtual Status Await(const Context& context) const = 0;
  // Notes in a handle that is made under which it was opened.
  virtual void Stamp(Handle& handle) const = 0;
  // kIo: it is not this one any more.
  virtual Status Check(uint64_t session) const = 0;
  // kIo: the file was opened for writing under one that is lost, or the store went back since.
  virtual Status Check(const Handle& handle) const = 0;
  // kIo: the store went back since it was opened, and the inode's number may be another file's now.
  virtual Status CheckStore(const Handle& handle) const = 0;
  // kIo: the session is lost, and with it every lock that was got through the handle.
  virtual Status CheckLocks(const Handle& handle) const = 0;
  // From now on nothing waits for other hosts.
  virtual void EndWaits() = 0;
};

class LocalSession final : public HostSession {
 public:
  Status Await(const Context&) const override { return {}; }
  void Stamp(Handle&) const override {}
  Status Check(uint64_t) const override { return {}; }
  Status Check(const Handle&) const override { return {}; }
  Status CheckStore(const Handle&) const override { return {}; }
  Status CheckLocks(const Handle&) const override { return {}; }
  void EndWaits() override {}
};

class SharedSession final : public HostSession {
 public:
  // `host` outlives it. `stop`: the filesystem stops. `wait_max`: of Await.
  SharedSession(ClusterHost& host, std::stop_token stop, std::chrono::milliseconds wait_max)
      : host_(host), stop_(std::move(stop)), wait_max_(wait_max) {}

  Status Await(const Context& context) const override;
  void Stamp(Handle& handle) const override;
  Status Check(uint64_t session) const override;
  Status Check(const Handle& handle) const override;
  Status CheckStore(const Handle& handle) const override;
  Status CheckLocks(const Handle& handle) const override;
  void EndWaits() override { waits_end_.request_stop(); }

  // Requested by EndWaits.
  std::stop_token waits_end() const { return waits_end_.get_token(); }
  bool waits_ended() const { return waits_end_.stop_requested(); }
  // Whether who waits for the answer to a publish of the file is to give up: the server stops and the store may be gone
  // for good.
  bool GivesUpOn(const SharedContent& shared) const;

 private:
  ClusterHost& host_;
  const std::stop_token stop_;
  const std::chrono::milliseconds wait_max_;
  std::stop_source waits_end_;
};

}  // namespace cairnfs::fs
