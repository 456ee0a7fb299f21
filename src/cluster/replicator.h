// Replicator: sees to it that each chunk that was put gets its copies, and lets a Sync wait for that. It carries out
// what ChunkCopies decides, with PeerQueues; everything else about a chunk's copies is in these two.
//
// Replies come on threads of gRPC's, and are handled on the work queue. Nothing here waits for the network but Sync.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/task_queue.h"
#include "base/thread_annotations.h"
#include "cluster/chunk_reads.h"
#include "cluster/cluster_chunk_store.h"
#include "cluster/confirmed_set.h"
#include "cluster/home.h"
#include "cluster/peer_caller.h"
#include "cluster/peer_queues.h"
#include "cluster/pending_chunks.h"
#include "cluster/pins.h"
#include "cluster/repair_needs.h"
#include "cluster/shortage.h"
#include "cluster/writers_first.h"

namespace cairnfs::cluster {

struct SyncCall {
  Context context;
  Clock::time_point begun_at;
  std::stop_token store_ended;  // nothing can be published any more
};

class Replicator {
 public:
  struct Parts {  // all outlive it, and the queues run nothing of its once it is closed
    store::LocalChunkStore& local;
    io::BufferPool& pool;
    Membership& membership;
    Reachability& reachability;
    GroupCommit& commit;
    HomeClaims& home;
    PeerCaller& caller;
    ChunkReads& reads;
    ChunkPins& pins;
    RepairNeeds& needs;
    TaskQueue& stores;  // what may wait for this node's disk
    TaskQueue& work;
  };
  Replicator(const Parts& parts, const ClusterChunkOptions& options);
  // Nothing new is begun. AwaitLoads: what was under way has ended. REQUIRES: closed.
  void Close() EXCLUDES_LOCK(mutex_);
  void AwaitLoads() EXCLUDES_LOCK(mutex_);

  // As ChunkStore::Put, but returns whether the chunk is new. REQUIRES for this and Cover: the caller has a pin.
  Result<bool> Put(const Digest& digest, std::span<const io::Slice> slices, const store::NewBytes& new_bytes)
      EXCLUDES_LOCK(mutex_);
  // As ClusterChunkStore::Cover. False: it is known to have its copies.
  bool Cover(const ClusterChunkStore::Sized& chunk) EXCLUDES_LOCK(mutex_);
  void NoteReferenced(std::span<const Digest> chunks) EXCLUDES_LOCK(mutex_);
  // Makes the missing copies of a chunk that is here; `ended` is called once that came to an end, on the work queue.
  // False: it is being put already.
  bool Repair(const Digest& digest, ChunkCopies::Repair repair, size_t size, std::function<void()> ended)
      EXCLUDES_LOCK(mutex_);
  // Returns how much waits to be said to the node.
  size_t Tell(const NodeId& node, const Digest& digest, const Holders& holders) EXCLUDES_LOCK(mutex_);

  using Unreadable = ClusterChunkStore::Unreadable;
  // As ClusterChunkStore::SyncReadable, and SyncOnly of `only`.
  Result<Unreadable> Sync(const Context& context, SyncPoint::Scope scope,
                          std::optional<std::span<const Digest>> only = std::nullopt) EXCLUDES_LOCK(mutex_);
  void SetMinReplicas(unsigned min_replicas) EXCLUDES_LOCK(mutex_);

  // The bytes of a chunk that is being put, while they are in memory.
  std::optional<store::ChunkData> FindBytes(const Digest& digest) EXCLUDES_LOCK(mutex_);
  struct Storing {
    Digest digest;
    std::vector<io::Slice> bytes;
    Holders announced;
  };
  // Those of these chunks that are on their way to this node's disk.
  std::vector<Storing> FindStoring(const std::vector<Digest>& digests) EXCLUDES_LOCK(mutex_);
  enum class Known { kPending, kAwaited, kPendingOrConfirmed };  // kAwaited: by a Sync
  std::vector<bool> Knows(std::span<const Digest> digests, Known known) EXCLUDES_LOCK(mutex_);
  // One copy of it is damaged: it counts as confirmed no more.
  void ForgetConfirmed(const Digest& digest) EXCLUDES_LOCK(mutex_);
  std::string DescribeShortage() EXCLUDES_LOCK(mutex_);
  bool LacksNodes() EXCLUDES_LOCK(mutex_);
  bool HasAwaited() EXCLUDES_LOCK(mutex_);
  void AddTo(ClusterChunkStats& stats) const EXCLUDES_LOCK(mutex_);

  // As ClusterChunkStore::BeginEpoch and AwaitSafe.
  void BeginEpoch() EXCLUDES_LOCK(mutex_);
  Status AwaitSafe(const Context& context) EXCLUDES_LOCK(mutex_);
  void OnNodesChanged(const NodeChanges& changes) EXCLUDES_LOCK(mutex_);
  void Tick() EXCLUDES_LOCK(mutex_);  // many times per second, by one thread

 private:
  using Answers = Result<std::vector<HasAnswer>>;

  Situation Now() REQUIRES_LOCK(mutex_);
  void Apply(const ChunkPtr& chunk, const ChunkCopies::Actions& actions) REQUIRES_LOCK(mutex_);
  void Finish(ChunkCopies& chunk) REQUIRES_LOCK(mutex_);
  void PutAgain(const ChunkPtr& chunk, std::span<const io::Slice> slices) REQUIRES_LOCK(mutex_);

  void PumpSoon(const NodeId& node) REQUIRES_LOCK(mutex_);
  void PumpReady() REQUIRES_LOCK(mutex_);
  void Pump(const NodeId& node) EXCLUDES_LOCK(mutex_);
  PeerQueues::Pace PaceNow() REQUIRES_LOCK(mutex_);
  bool StartQuestion(const NodeId& node, Question question) EXCLUDES_LOCK(mutex_);  // false: there is none now
  void OnAsked(const PeerSession& peer, Question question, const std::vector<ChunkPtr>& chunks, const Answers& answers)
      EXCLUDES_LOCK(mutex_);
  void OnConfirmed(const PeerSession& peer, const std::vector<ChunkPtr>& chunks, const Result<std::vector<bool>>& bits)
      EXCLUDES_LOCK(mutex_);
  bool StartSend(const NodeId& node) EXCLUDES_LOCK(mutex_);  // false: there is nothing to send now
  void OnSent(const PeerSession& peer, PeerQueues::Message message, const Result<std::vector<PutAnswer>>& answers)
      EXCLUDES_LOCK(mutex_);
  void GiveUpUnsent(const NodeId& node) REQUIRES_LOCK(mutex_);

  void StoreSoon(const ChunkPtr& chunk) REQUIRES_LOCK(mutex_);
  void StoreFirst(const ChunksBySequence& chunks) REQUIRES_LOCK(mutex_);
  void StoreOthers() REQUIRES_LOCK(mutex_);
  void Store(const ChunkPtr& chunk) EXCLUDES_LOCK(mutex_);
  void LoadThenStore(const ChunkPtr& chunk) REQUIRES_LOCK(mutex_);
  // To be sent to `node`, or to be stored here. `then` is called on the work queue, with the lock held.
  void Load(const ChunkPtr& chunk, const NodeId& node, std::function<void(const Status&)> then) REQUIRES_LOCK(mutex_);
  enum class Turn { kAll, kSome };
  void RetryUnderReplicated(Turn turn) EXCLUDES_LOCK(mutex_);

  Status WaitUntil(const SyncCall& call, const SyncPoint& point, const std::function<bool()>& is_reached)
      REQUIRES_LOCK(mutex_);
  Status AwaitPoint(const SyncCall& call, SyncPoint& point) EXCLUDES_LOCK(mutex_);

  const Parts parts_;
  const ClusterChunkOptions options_;
  const NodeId self_;
  std::atomic<unsigned> min_replicas_;  // 1 to `copies`

  mutable Mutex mutex_;  // before those of the parts
  CondVar changed_;      // a chunk came further, while sync_waiters_ > 0
  unsigned sync_waiters_ GUARDED_BY(mutex_) = 0;
  bool closing_ GUARDED_BY(mutex_) = false;
  PendingChunks pending_ GUARDED_BY(mutex_);
  PeerQueues queues_ GUARDED_BY(mutex_);
  ConfirmedSet confirmed_ GUARDED_BY(mutex_);
  uint64_t epoch_ GUARDED_BY(mutex_) = 0;               // of those that this process has begun
  std::vector<ChunkPtr> made_safe_ GUARDED_BY(mutex_);  // that are to be, in this epoch
  WritersFirst writers_ GUARDED_BY(mutex_);
  std::unordered_set<NodeId, NodeIdHash> pumps_ GUARDED_BY(mutex_);  // that are to run on the work queue
  std::unordered_map<Digest, std::function<void()>, DigestHash> repairs_ GUARDED_BY(mutex_);
  std::unordered_map<Digest, store::NewBytes, DigestHash> counted_ GUARDED_BY(mutex_);  // of the chunks being put
  std::unordered_set<ChunkPtr> to_store_ GUARDED_BY(mutex_);                            // and no thread has begun
  // What a Sync of some chunks does not wait for is held back meanwhile.
  struct Hold {
    std::unordered_set<ChunkPtr> first;  // those that it waits for
    std::vector<ChunkPtr> held_back;
    Clock::time_point until;
  };
  std::optional<Hold> hold_ GUARDED_BY(mutex_);
  size_t loads_ GUARDED_BY(mutex_) = 0, loads_to_store_ GUARDED_BY(mutex_) = 0;
  uint64_t late_commits_ GUARDED_BY(mutex_) = 0;     // what has yet to be committed came after its chunk was placed
  std::optional<Error> failure_ GUARDED_BY(mutex_);  // the store refuses until it is reopened

  // Of the thread that ticks.
  Clock::time_point retry_at_{};
  std::vector<NodeId> retried_with_;  // nodes that took chunks at the last retry
  ChunkPtr retried_;                  // the last one of the turn

  std::atomic<uint64_t> sent_bytes_{0}, new_bytes_{0}, known_bytes_{0};
};

}  // namespace cairnfs::cluster
