// The control service: gRPC on a Unix socket with mode 0600, and on another with mode 0666 the commits of ranks.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/context.h"
#include "base/result.h"
#include "control.pb.h"
#include "control/drain.h"
#include "control/rank_gate.h"
#include "control/remount_call.h"
#include "fs/filesystem.h"

namespace cairnfs::control {

// What the service asks a host of a cluster. Any thread.
class ClusterControl {
 public:
  virtual ~ClusterControl() = default;
  virtual ClusterActivity Activity() const = 0;                     // at no cost
  virtual Result<ClusterReply> Report(const Context& context) = 0;  // asks the shared store
  // A token that is good for `life`. kInvalidArgument: no host joins by this one. kExhausted: too many are out.
  virtual Result<TokenReply> MakeToken(std::chrono::seconds life) = 0;
  // By name or id in hex. kNotFound; kInvalidArgument: several have that name. Drain: also where too few nodes are
  // left; kNoSpace: they have no room for what it has. Remove: kInvalidArgument, it was not drained; kBusy: it is up.
  // These and Replace: kInvalidArgument, it has the names, is their standby or their witness.
  virtual Result<NodeReply> Drain(const Context& context, const DrainNodeRequest& request) = 0;
  virtual Result<NodeReply> Remove(const Context& context, const RemoveNodeRequest& request) = 0;
  virtual Result<HoldsReply> Holds(const Context& context) = 0;
  virtual Status ReleaseHold(const Context& context, uint64_t id) = 0;  // kNotFound
  // Likewise; kInvalidArgument also: it is this host's own, has the only copies of something perhaps, or the host with
  // the names. Done already is done.
  virtual Result<NodeReply> Replace(const Context& context, const ReplaceNodeRequest& request) = 0;
  // Gives the names of the cluster a standby, or takes it away; to be called on the host that serves them. Promote: on
  // the standby, which serves them then. kInvalidArgument: this host is not the one, or it would lose names and may
  // not; kBusy: the host that serves them is up. Done already is done.
  virtual Result<NodeReply> SetStandby(const Context& context, const SetStandbyRequest& request) = 0;
  virtual Result<PromoteReply> Promote(const Context& context, const PromoteRequest& request) = 0;
  // For the whole cluster; 0: as many as copies. What counts then. kInvalidArgument: there are not so many copies.
  // Nothing is set once the context has expired.
  virtual Result<SetMinReplicasReply> SetMinReplicas(const Context& context, uint32_t min_replicas) = 0;
};

// Changes options while the filesystem is mounted. Any thread.
class RemountControl {
 public:
  virtual ~RemountControl() = default;
  // Says what the call would do, and changes nothing. kInvalidArgument names an option that is wrong or cannot change.
  virtual Result<RemountReport> Look(const RemountCall& call) = 0;
  // To be called after the kernel has taken its part. When it returns, a filesystem that becomes read-only is so, and
  // all of it is durable. When that fails nothing is changed. kInterrupted: the context expired before.
  virtual Status Remount(const Context& context, const RemountCall& call) = 0;
};

// Writes a dump of the names by handing on its bytes. `hold` 0: its chunks are not held. Any thread.
using DumpSink = std::function<Status(std::string_view bytes)>;
using DumpNames =
    std::function<Result<HoldReply>(const Context& context, std::chrono::seconds hold, const DumpSink& sink)>;

class Service {
 public:
  struct Options {
    std::string socket_path;
    StatusReply daemon;                 // with what is constant for the life of a daemon
    RankGate* gate = nullptr;           // not null; outlives the service
    RemountControl* remount = nullptr;  // null: nothing can be changed; outlives the service
    ClusterControl* cluster = nullptr;  // null: this host is alone; outlives the service
    DumpNames dump_names;               // empty: names cannot be dumped
    // Has the daemon unmount and end by then. Does not wait for that, and says what there is to do. kBusy: it
    // starts yet. Empty: it cannot be told to.
    std::function<Result<StopEstimate>(std::chrono::milliseconds deadline)> stop = {};
    DrainLog drain_log = {};
    // How many ranks of all users may commit at once, each with a thread (control/user_shares.h). One more is refused
    // (kBusy).
    unsigned ranks_max = 384;
    // A connection of a rank on which no call runs is closed after so long.
    std::chrono::milliseconds rank_idle_max{60'000};
  };
  // `filesystem` outlives the service. kIo when the socket cannot be made.
  static Result<std::unique_ptr<Service>> Start(Options options, fs::FileSystem& filesystem);
  ~Service();  // Shutdown
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Cancels the calls in progress and waits for them; after it the filesystem may be stopped.
  void Shutdown();
  // The same, and then answers Status and StopOutcome alone, until Shutdown. kIo: it cannot listen any more.
  Status AnswerStatusOnly();
  StatusReply Report() const;
  // Functions of a stop: until Shutdown, also beside AnswerStatusOnly.
  StopEstimate EstimateStop() const;
  // The daemon is about to end, and this is lost: answers StopOutcome with it. Where a caller of Stop waits, returns
  // once somebody was answered, or the context has expired.
  void TellUnsaved(const Context& context, const Unsaved& unsaved);

 private:
  class Impl;
  explicit Service(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairnfs::control
