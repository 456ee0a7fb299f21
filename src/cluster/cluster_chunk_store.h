// ClusterChunkStore: the ChunkStore of a host in a cluster. docs/cluster/chunks.md has the protocol.
//
// A chunk is put once in the whole cluster: digests go to their homes in batches, and only what no R nodes hold durably
// is stored, on this node and on the first others of its order. Put returns before that is known and keeps the slices
// alive until it is; Sync waits until every chunk put before has its copies.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>

#include "base/context.h"
#include "cluster/balance.h"
#include "cluster/membership.h"
#include "cluster/peers.h"
#include "rpc/local_peer.h"
#include "rpc/tls.h"
#include "store/local_chunk_store.h"

namespace cairnfs::cluster {

// A read waits so long for a node that may have the chunk and cannot be reached.
inline constexpr std::chrono::seconds kReadWaitMax{30};
// Whoever has the claim on a chunk has it for so long.
inline constexpr std::chrono::seconds kClaimTimeMax{30};

// How long another node has to answer. One that does not counts as down for a moment, and work goes to the next.
struct PeerTimeouts {
  std::chrono::milliseconds connect{1000};
  std::chrono::milliseconds ask{3000};           // for who has a chunk
  std::chrono::milliseconds ask_and_hold{6000};  // the same, where the answer is held back until there is news
  std::chrono::milliseconds confirm{15'000};     // the holder may have to sync first
  std::chrono::milliseconds has{5000};           // of ClusterChunkStore::Has
  std::chrono::milliseconds silent{3000};        // a node that has answered nothing for so long is suspected by reads
};

struct ClusterChunkOptions {
  unsigned copies = 2;
  // Of nodes that are up, for a Sync to succeed; 0: as many as `copies`. SetMinReplicas changes it.
  unsigned min_replicas = 0;
  size_t window_bytes_per_peer = 64 * kMiB;  // sent and not acknowledged
  unsigned connections_per_peer = 2;
  std::chrono::seconds sync_wait_max{600};                 // a Sync that lacks nodes fails with kUnavailable after this
  std::chrono::milliseconds read_wait_max = kReadWaitMax;  // of GetForReader, since it was called
  PeerTimeouts timeouts;
  std::chrono::seconds claim_time_max = kClaimTimeMax;
  // Hosts count as reading the same for so long since that was last seen, and then one disk serves all.
  std::chrono::milliseconds shared_reads_last{1000};
  // Of the store that keeps the names: when it is over a Sync waits for nodes no more, since nothing can be published.
  std::shared_ptr<kv::AnswerWatch> answers;
  uint64_t repair_bytes_per_second_max = 256 * kMiB;  // of rebalancing too
  // What the nodes have, as they told it lately; nullopt: not known at present. By this each node finds whether it has
  // more than its share. null: never known. Called by one thread; may wait within the context.
  std::function<std::optional<StoredBytes>(const Context&)> stored_bytes;
  // Chunks are sent to other nodes, and small batches of questions asked, once nobody has put one for so long, memory
  // gets short, a Sync waits, or `writers_first_max` has passed. For hosts with few cores, where copying takes from
  // those who write. 0: at once.
  std::chrono::milliseconds writer_pause{0};
  std::chrono::milliseconds writers_first_max{500};
  rpc::Tls tls;  // of connections to other nodes; none: they are plain
};

struct ClusterChunkStats {
  uint64_t sent_bytes_total, received_bytes_total;            // chunk bytes over the network, to and from peers
  uint64_t wire_sent_bytes_total, wire_received_bytes_total;  // of all messages, with digests and framing
  // Of what was put: that had fewer than R copies, which were made then; that had them already, on whichever nodes, so
  // that nothing was stored or sent.
  uint64_t new_in_cluster_bytes_total, known_in_cluster_bytes_total;
  uint64_t remote_reads_total, remote_read_bytes_total;
  uint64_t put_off_total;         // how often there was something to ask or send, and writers went first
  uint64_t unacknowledged_bytes;  // replication lag: put, and without all copies yet
  uint64_t pending_chunks;        // being saved, covered or copied
  uint64_t missing_copies;        // chunks of this node's knowledge with fewer than `copies` copies
  uint64_t repair_bytes_total, repair_chunks_left;
  std::string repair_phase;           // "", "scanning", "copying", "rebalancing"
  bool knows_missing_copies = false;  // those of an earlier process are counted too
};

class ClusterChunkStore : public store::ChunkStore {
 public:
  // All outlive it. Membership's view tells whom to ask.
  static std::unique_ptr<ClusterChunkStore> Create(store::LocalChunkStore& local, kv::KvEngine& engine,
                                                   io::BufferPool& pool, Membership& membership,
                                                   const ClusterChunkOptions& options);
  virtual ClusterChunkStats ClusterStats() const = 0;
  // ClusterChunkOptions::min_replicas from now on, also for the Syncs that wait: they go on at once where the new value
  // allows it. What was done with fewer copies stays done, and is left to repair. Any thread.
  virtual void SetMinReplicas(unsigned min_replicas) = 0;
  // ClusterChunkOptions::repair_bytes_per_second_max from now on. Any thread.
  virtual void SetRepairRate(uint64_t bytes_per_second_max) = 0;
  // kThisNode: this node's own disk alone (durability level `local`); the copies follow by themselves.
  enum class SyncScope { kCopies, kThisNode };
  // Chunks that were put, and can be read back no more to be sent or stored, each with why.
  using Unreadable = std::map<Digest, Error>;
  // As Sync, for all chunks but these: whoever has one of them pinned cannot rely on it. Waits no longer than
  // sync_wait_max and the context allow: kInterrupted where that was stopped.
  virtual Result<Unreadable> SyncReadable(const Context& context, SyncScope scope) = 0;
  // The same for these chunks alone. They go to this node's disk ahead of what was put before, which is held back until
  // a second after the call, and for 10 s at most. One call at a time.
  virtual Result<Unreadable> SyncOnly(const Context& context, SyncScope scope, std::span<const Digest> chunks) = 0;
  struct Sized {
    Digest digest;
    size_t size = 0;  // of the whole chunk
  };
  // For chunks that lie on some node and are about to be named where copies are promised: a Sync that begins later
  // waits for the copies of these too, and has them made where they are missing, as if they had been put. One of
  // kThisNode waits until one node says that it has it. Pins of those that are not known to have their copies: without
  // a pin, what cannot be read is given up. Any thread; does not block.
  virtual std::vector<store::ChunkPin> Cover(std::span<const Sized> chunks) = 0;
  // Records at level `local` reference these, and their pins go: a Sync waits for their copies all the same. What else
  // has no pin is waited for no longer where no node has room for its copies. Any thread; does not block.
  virtual void NoteReferenced(std::span<const Digest> chunks) = 0;
  // For people: why chunks wait for copies, with the nodes that are away and the setting. Empty: none waits.
  virtual std::string DescribeShortage() = 0;
  // Whether a Sync waits, or would wait, for copies that nothing under way makes: too few nodes can take them at
  // present. Any thread; cheap.
  virtual bool LacksNodes() = 0;
  // Waits until each copy that a check of this node's disk has found damaged so far was replaced by that of another
  // node, or could not be, and no longer than a minute in which none was: the others stay damaged, and are tried again
  // later. kInterrupted: the context expired, or the store ends.
  virtual Status AwaitHealing(const Context& context) = 0;
  // A new epoch of the collection (docs/cluster/collection.md): forgets which chunks have their copies, and asks anew
  // who has those that are pinned to be named; what nodes said before does not count. A Sync that begins later waits
  // for it. One call at a time; does not wait for other nodes.
  virtual void BeginEpoch() = 0;
  // Waits until each chunk of BeginEpoch lies where it cannot be collected: somebody who was asked since has it.
  // kUnavailable: some did not until the context expired.
  virtual Status AwaitSafe(const Context& context) = 0;
  // Repair copies and frees nothing from now on, or does again: where it is not known which chunks are dead it would
  // bring them back to nodes that have freed them. Waits until nothing is being freed.
  virtual void HoldRepair(bool hold) = 0;
  // Before the sweep of this node: forgets who holds those chunks that this node has not, that are not live, and that
  // nobody has asked for since it records.
  virtual Status ForgetHolders(const Context& context, const store::LiveTest& live) = 0;
  // How many of these have not the copies yet that a Sync waits for. Any thread; does not block.
  virtual size_t CountUnderReplicated(std::span<const Digest> chunks) = 0;
  virtual class ChunkServer& peer() = 0;  // what PeerService serves
};

// The gRPC server of a node: chunks, and what the handler of Peers answers. Listens on `address`; the port may be 0.
class PeerService {
 public:
  struct Options {
    std::string listen;         // IP:PORT
    std::string metadata;       // as of PeerServer
    rpc::Tls tls;               // the same
    rpc::IsTrusted is_trusted;  // the same
    // The certificate for a node that asks with a request for one. Empty: nobody is asked to sign here.
    std::function<Result<std::string>(const NodeId& node, std::string_view request)> sign;
    unsigned threads = 4;
  };
  // kUnavailable: the address cannot be listened on; the message says why. All outlive it.
  static Result<std::unique_ptr<PeerService>> Start(const Options& options, ClusterChunkStore& chunks,
                                                    Membership& membership);
  virtual ~PeerService() = default;                // ends calls in progress
  virtual const std::string& address() const = 0;  // with the port that was taken
  virtual uint64_t refused_total() const = 0;      // connections and calls
  virtual Peers& peers() = 0;
  // Asks a node to sign a request for a certificate. kNotSupported: it signs none. As PeerClient::Call.
  virtual Result<std::string> RequestCertificate(const Context& context, const NodeId& node,
                                                 const std::string& request) = 0;
};

}  // namespace cairnfs::cluster
