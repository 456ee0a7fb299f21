// ChunkServer: what this node answers to others about chunks.
#pragma once

#include <atomic>

#include "cluster/chunk_reads.h"
#include "cluster/home.h"
#include "cluster/peer_client.h"
#include "cluster/peer_server.h"
#include "cluster/repair_needs.h"
#include "cluster/replicator.h"

namespace cairnfs::cluster {

class ChunkServer {
 public:
  struct Parts {  // all outlive it
    store::LocalChunkStore& local;
    GroupCommit& commit;
    HomeClaims& home;
    Replicator& replicator;
    ChunkReads& reads;
    RepairNeeds& needs;
    PeerClient& client;
    WireCounters& wire;
    TaskQueue& work;
    Membership& membership;
    NodeId self;
    size_t copies;
  };
  explicit ChunkServer(const Parts& parts) : parts_(parts) {}

  // Answers kHas, kConfirm, kPut and kGet; others kNotSupported. May block on the disk. `respond` is called once, at
  // once or later by another thread.
  void Handle(PeerMethod method, const NodeId& caller, const PeerMessage& request, PeerServer::Respond respond);
  void StopHolding() { parts_.home.Close(); }  // answers what is held back, from now on at once
  PeerClient& client() { return parts_.client; }
  WireCounters& wire() { return parts_.wire; }

  uint64_t sent_bytes() const { return sent_bytes_.load(std::memory_order_relaxed); }          // of chunks
  uint64_t received_bytes() const { return received_bytes_.load(std::memory_order_relaxed); }  // the same

 private:
  struct Serving;
  void HandleHas(const NodeId& caller, const PeerMessage& request, PeerServer::Respond respond);
  void HandleConfirm(const PeerMessage& request, PeerServer::Respond respond);
  void HandlePut(const NodeId& caller, const PeerMessage& request, PeerServer::Respond respond);
  void HandleGet(const PeerMessage& request, PeerServer::Respond respond);
  void StorePending(const std::vector<Digest>& digests);
  bool IsDrained() const;  // this node
  void TakeUpdate(const PutItem& item);
  PutAnswer StoreReceived(const PutItem& item, const std::vector<io::Slice>& slices);
  void ReadWave(const std::shared_ptr<Serving>& serving);
  void AnswerGet(const std::shared_ptr<Serving>& serving);

  const Parts parts_;
  std::atomic<uint64_t> sent_bytes_{0}, received_bytes_{0};
};

}  // namespace cairnfs::cluster
