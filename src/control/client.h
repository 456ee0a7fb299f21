// The command line's end of the control service.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "control.pb.h"
#include "control/rank_gate.h"
#include "control/remount_call.h"

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

  Result<StatusReply> GetStatus(const StatusQuery& query = {});
  // Until everything is durable that was written on this host. An error where bytes of the inode, a file or a directory
  // with all that is below it, are lost or cannot be published, on whichever host. `path` is how an error calls it.
  // nullopt: no daemon could be asked, for want of one or of the right to pass the directories above its sockets.
  std::optional<Status> Wait(InodeId inode, const std::string& path);
  // Has the daemon unmount and end. What there is to do by then.
  Result<StopEstimate> Stop(std::chrono::milliseconds deadline);
  // Has the daemon make durable what can be in that time. What is not by then; nullopt: all is durable. `on_estimate`
  // is told what there is to do first. Of a daemon that does not answer in time `reason` says so.
  Result<std::optional<Unsaved>> Drain(std::chrono::milliseconds deadline,
                                       const std::function<void(const StopEstimate&)>& on_estimate);
  // What the host has still to write. Answers at once, also where the disk is slow.
  Result<UnwrittenReply> GetUnwritten();
  // Waits for a moment until there is something to tell. Who has been told calls it once more, and says so.
  Result<StopOutcomeReply> StopOutcome(bool was_told);
  Result<GcProgress> Gc(const GcRequest& request, const std::function<void(const GcProgress&)>& on_progress);
  // nullopt: no daemon listens there. One that ends while it checks is an error, kUnavailable.
  Result<std::optional<CheckReply>> Check(const std::function<void(const CheckProgress&)>& on_progress);
  Result<ClusterReply> GetCluster();
  Result<TokenReply> MakeToken(std::chrono::seconds life);
  Result<NodeReply> DrainNode(const DrainNodeRequest& request);
  Result<NodeReply> RemoveNode(const RemoveNodeRequest& request);
  Result<NodeReply> SetStandby(const SetStandbyRequest& request);
  Result<PromoteReply> Promote(const PromoteRequest& request);
  Result<NodeReply> ReplaceNode(const ReplaceNodeRequest& request);
  // Asks what the kernel is to be told, has `tell_kernel` do so, and has the daemon take its own part. Where that
  // fails, `take_back` undoes what the kernel was told.
  Status Remount(const RemountCall& call, const std::function<Status(const RemountReport&)>& tell_kernel,
                 const std::function<void()>& take_back);
  // 0: as many as copies.
  Result<SetMinReplicasReply> SetMinReplicas(uint32_t min_replicas);
  // Hands on the bytes of a dump of all names, until `take` returns an error, which is returned. kStale: the store has
  // forgotten what was being read; to be called again, from the first byte on.
  // `hold` 0: its chunks are not held; else the hold.
  Result<HoldReply> DumpNames(std::chrono::seconds hold, const std::function<Status(const std::string& bytes)>& take);
  Result<HoldsReply> Holds();
  Status ReleaseHold(uint64_t id);  // kNotFound
  Status PausePolicies();           // for who is about to unmount
  // What the caller may see of the trash, the oldest first; each page is handed on as it comes.
  Status TrashList(const std::function<void(const TrashEntry&)>& tell);
  Result<TrashRestoreReply> TrashRestore(const TrashRestoreRequest& request);
  Result<TrashEmptyReply> TrashEmpty(const TrashEmptyRequest& request);
  // Sets a quota, or takes it off; tells now and then how many inodes it has looked at.
  Status SetQuota(const QuotaRequest& request, const std::function<void(uint64_t inodes)>& on_progress);
  // One rank of a commit: returns when its outcome is known. Calls `rename` when this rank is the one to rename.
  Status Commit(const GateCall& call, const std::function<Status()>& rename);
  // A ticket for a commit that is made later. Blocks while another of the caller's is under way, as the request says.
  Result<uint64_t> Defer(const DeferRequest& request);
  // Blocks until it has ended, or for the time of the request. Its result is given once.
  Result<AwaitTicketReply> AwaitTicket(const AwaitTicketRequest& request);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairnfs::control
