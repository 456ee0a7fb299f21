// Reads chunks from other nodes, each verified, and keeps them in the cache of this node's own chunks.
//
// Asked in turn: the chunk's home, the holders that it names, the others in the chunk's order, then those that did not
// answer lately, and last those that are down. All who want one chunk share one fetch; several fetches from one node
// share a call.
#pragma once

#include <atomic>
#include <deque>
#include <unordered_map>

#include "base/clock.h"
#include "base/task_queue.h"
#include "base/thread_annotations.h"
#include "cluster/group_commit.h"
#include "cluster/peer_client.h"
#include "cluster/reachability.h"
#include "store/chunk_cache.h"

namespace cairnfs::cluster {

class RemoteReader {
 public:
  struct Parts {  // all outlive it
    io::BufferPool& pool;
    PeerClient& client;
    Membership& membership;
    Reachability& reachability;
    GroupCommit& commit;
    store::ChunkCache& cache;
  };
  struct Counters {
    std::atomic<uint64_t> reads{0}, read_bytes{0};
  };
  // What a fetch came to. `away_since` comes with kUnavailable and kCorrupt where nodes that may come back could not be
  // asked, or were busy: when the last of them fell silent.
  using FetchCallback =
      std::function<void(Result<store::ChunkData>, const std::optional<Clock::time_point>& away_since)>;
  // `silent_max`: of Tick.
  RemoteReader(const Parts& parts, std::chrono::milliseconds silent_max);
  ~RemoteReader();  // waits for the fetches under way. REQUIRES (unchecked): the client is closed, so that they end

  // kNotFound: every node says that it has no such chunk. kUnavailable: some could not be asked. kCorrupt: those that
  // have it cannot read it. Never blocks; `done` is called on a thread of its own.
  void Fetch(const Digest& digest, FetchCallback done);
  // Starts fetching into the cache, as long as there is room.
  void Prefetch(const Digest& digest);
  // Many times per second, by one thread. A node that has answered nothing for so long while calls wait is
  // suspected: what it was asked for is read from other nodes, and it counts as down until its next answer.
  void Tick() EXCLUDES_LOCK(mutex_);
  // The node came up: that it could not be asked before is over.
  void NoteUp(const NodeId& node) EXCLUDES_LOCK(mutex_);
  void AwaitIdle() EXCLUDES_LOCK(mutex_);  // until no fetch is under way
  const Counters& counters() const { return counters_; }

 private:
  struct Operation;
  using OperationPtr = std::shared_ptr<Operation>;
  // What a node is asked for in one call; null: other nodes are asked for it since.
  using Asked = std::shared_ptr<std::vector<OperationPtr>>;
  struct Peer {
    std::deque<OperationPtr> queue;  // a fetch is in one queue at most, so the readers bound it
    std::vector<Asked> calls;        // under way
    bool is_suspected = false;
    bool is_probed = false;
    std::optional<Clock::time_point> away_since;  // it has not answered since
    Clock::time_point away_seen{};                // when that was seen last
  };

  void Start(const OperationPtr& operation);                          // on workers_
  void AskNext(const OperationPtr& operation) EXCLUDES_LOCK(mutex_);  // the next node, or ends it
  bool WasAsked(const Operation& operation, const NodeId& node) const;
  std::optional<NodeId> ChooseNext(const Operation& operation) const;
  bool HasAnswered(const Operation& operation, const NodeId& node) const;
  Error NotFoundAnywhere(const Operation& operation) const;
  static void NoteAway(Peer& peer);
  static std::vector<OperationPtr> TakeImpatient(Peer& peer);  // what may be asked of another node
  void EndCall() EXCLUDES_LOCK(mutex_);
  void Probe(const NodeId& node) EXCLUDES_LOCK(mutex_);
  std::optional<Clock::time_point> AwaySince(const Operation& operation) EXCLUDES_LOCK(mutex_);
  void Pump(const NodeId& node) EXCLUDES_LOCK(mutex_);
  void OnReply(const NodeId& node, const Asked& call, Result<PeerMessage> reply) EXCLUDES_LOCK(mutex_);
  void OnAnswer(const NodeId& node, const OperationPtr& operation, struct GetAnswer&& answer, PayloadReader& payload);
  Result<store::ChunkData> VerifyAndKeep(const OperationPtr& operation, const std::vector<io::Slice>& slices,
                                         size_t size) EXCLUDES_LOCK(mutex_);
  std::vector<io::Slice> CopyToPool(const std::vector<io::Slice>& slices, size_t size) EXCLUDES_LOCK(packing_mutex_);
  void Finish(const OperationPtr& operation, const Result<store::ChunkData>& result,
              const std::optional<Clock::time_point>& away_since = std::nullopt) EXCLUDES_LOCK(mutex_);
  void Join(const Digest& digest, FetchCallback done) EXCLUDES_LOCK(mutex_);

  const Parts parts_;
  const std::chrono::milliseconds silent_max_;
  Counters counters_;
  Mutex mutex_;
  CondVar ended_;
  std::unordered_map<Digest, OperationPtr, DigestHash> in_flight_ GUARDED_BY(mutex_);
  std::unordered_map<NodeId, Peer, NodeIdHash> peers_ GUARDED_BY(mutex_);
  size_t running_ GUARDED_BY(mutex_) = 0;  // fetches
  size_t calls_ GUARDED_BY(mutex_) = 0;    // some outlast what they were made for
  Mutex packing_mutex_;
  io::BufferRef packed_ GUARDED_BY(packing_mutex_);
  size_t packed_used_ GUARDED_BY(packing_mutex_) = 0;
  TaskQueue workers_;
};

}  // namespace cairnfs::cluster
