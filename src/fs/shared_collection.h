// SharedCollection: this host's part in the collections of a cluster. docs/cluster/collection.md has the protocol, and
// why nothing that a record names is lost.
#pragma once

#include "fs/cluster_host.h"
#include "fs/collection_work.h"
#include "fs/filesystem.h"
#include "fs/marker.h"

namespace cairnfs::fs {

class SharedCollection final : public CollectionWork {
 public:
  // `store`: what is there now, not what this host remembers. `engine`: this node's own. All outlive it.
  SharedCollection(const FileSystem::Parts& parts, ClusterHost& host)
      : kv_(parts.cluster->store), engine_(*parts.engines.front()), local_(parts.local_chunks), host_(host) {}

  Status Collect(const Context& context, uint64_t bytes_per_second_max, CollectionProgress& progress) override;
  bool IsCalled(const Context& context) override;
  Result<bool> TakePart(const Context& context, uint64_t bytes_per_second_max, CollectionProgress& progress) override;
  uint64_t CountFree(uint64_t, uint64_t) const override { return 0; }  // of this node's chunks nobody else knows
  // Of this node's chunks. What another host is saving, and no record names yet, counts as dead.
  Result<store::LiveTotals> Count(const Context& context) override;
  Status NoteUncollected(uint64_t) override { return {}; }
  Result<uint64_t> TakeUncollected() override { return 0; }
  Status Release() override;

 private:
  using Part = cluster::CollectionPart;
  using State = cluster::EpochState;
  // What this host does in one collection.
  struct Turn {
    Part part;                     // as told
    uint64_t recording_since = 0;  // revision at which it was told; 0: this node does not record
    uint64_t session = 0;
    bool is_recording = false, has_freed = false;
  };
  Status TakeTurn(const Context& context, uint64_t bytes_per_second_max, CollectionProgress& progress, Turn& turn);
  Status Record(const Context& context, const State& state, Turn& turn);
  // Makes the epoch this host's own: what it saves is asked for anew.
  Status BeginEpoch(const Context& context, Turn& turn);
  Status MarkAndSweep(const Context& context, const Turn& turn, uint64_t bytes_per_second_max,
                      CollectionProgress& progress);
  // The state once all nodes with a session fulfil it. An error: somebody failed, the session was lost, it was held up,
  // or the context expired.
  Result<State> AwaitAll(const Context& context, const Turn& turn, CollectionProgress& progress, const char* what,
                         const std::function<bool(const Part&)>& fulfils);
  // Seals the candidates, and marks those that records name.
  Status Mark(const Context& context, CandidateSet& candidates, std::atomic<uint64_t>& inodes_marked);
  Status Tell(const Context& context, Turn& turn);
  // Holds collections up where the store went back, and says so.
  Status CheckStore(const Context& context, const State& state);
  Status Remember(const State& state);
  bool HasTakenPart(const State& state) const;  // in the announced collection, under this session
  // Until all have ended: the sum of what they have freed, or the error of one.
  Status AwaitEnd(const Context& context, CollectionProgress& progress);

  kv::KvStore& kv_;
  kv::KvEngine& engine_;
  store::LocalChunkStore& local_;
  ClusterHost& host_;

  // Of the collector's thread.
  Clock::time_point look_at_{};
  Part last_;                // told last
  uint64_t told_under_ = 0;  // session
  Clock::time_point remember_at_{};
  uint64_t store_state_ = 0;
  bool has_compared_ = false;  // what this node remembers with the store
};

}  // namespace cairnfs::fs
