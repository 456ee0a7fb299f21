// The command line's end of the control service.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "control/rank_gate.h"
#include "control/report.h"

namespace cairnfs::control {

struct StatusQuery {
  // Which failed commits are told: those of directories at, above or below this path, which begins below the root;
  // empty: all.
  std::string failures_at;
  bool exact = false;            // counts anew what files need, which may take long
  bool metadata_owners = false;  // all metadata is read for them
};

// A connection for each call; one thread at a time. Every call: kUnavailable when no daemon answers, kPermission when
// the socket is another user's, else the daemon's own error.
class Client {
 public:
  explicit Client(const std::string& socket_path);
  Client(Client&&) noexcept;
  ~Client();

  Result<StatusReport> GetStatus(const StatusQuery& query = {});
  // Waits until all that was written on this host is durable, and so is what other hosts have closed of the inode: a
  // file, or a directory with all that is below it. `path` is its name in errors. nullopt: no daemon could be asked;
  // there is none, or this process may not pass the directories above its sockets.
  std::optional<Status> Wait(InodeId inode, const std::string& path);
  Result<GcReport> Gc(const std::function<void(const GcReport&)>& on_progress);
  // nullopt: no daemon listens there. kUnavailable: the daemon ended while it checked.
  Result<std::optional<CheckReport>> Check(const std::function<void(const CheckState&)>& on_progress);
  Result<ClusterReport> GetCluster();
  Result<ForgottenNode> Forget(const std::string& node);
  // Asks the daemon what to tell the kernel, has `tell_kernel` do that, and has the daemon take its own part. Where the
  // last step fails, `take_back` undoes what the kernel was told.
  Status Remount(const RemountCall& call, const std::function<Status(const RemountReport&)>& tell_kernel,
                 const std::function<void()>& take_back);
  // 0: as many as copies.
  Result<ReplicasReport> SetMinReplicas(uint32_t min_replicas);
  // One rank of a commit: returns when its outcome is known. Calls `rename` when this rank is the one to rename.
  Status Commit(const GateCall& call, const std::function<Status()>& rename);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairnfs::control
