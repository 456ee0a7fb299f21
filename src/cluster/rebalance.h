// Rebalance: moves copies of this node's chunks to the nodes that should have them, and frees those of them that are
// too many. docs/cluster/rebalancing.md has the rules, and why enough copies stay.
//
// It has no thread: repair's runs it, once no copies are missing.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <set>
#include <stop_token>
#include <vector>

#include "base/context.h"
#include "cluster/balance.h"
#include "cluster/replicator.h"

namespace cairnfs::cluster {

class Rebalance {
 public:
  struct Parts {  // all outlive it
    store::LocalChunkStore& local;
    GroupCommit& commit;
    Membership& membership;
    Reachability& reachability;
    PeerCaller& caller;
    ChunkReads& reads;
    Replicator& replicator;
    size_t copies;
    std::chrono::milliseconds confirm_timeout;
    // What the nodes have; nullopt: not known at present. null: never, and only nodes of weight 0 give chunks away.
    std::function<std::optional<StoredBytes>(const Context&)> stored_bytes;
  };
  Rebalance(const Parts& parts, const std::atomic<uint64_t>& bytes_per_second_max)
      : parts_(parts), self_(parts_.membership.self()), bytes_per_second_max_(bytes_per_second_max) {}

  // Goes through this node's chunks once. Ends early when `yields` says so, which is asked often. One thread.
  struct Outcome {
    bool is_complete = true;   // nothing is left that was to move or to be freed
    bool has_changed = false;  // something moved or was freed
  };
  Outcome Run(const Context& context, const std::function<bool()>& yields);
  // Frees nothing from now on, or does again: the store has one collection at a time. Waits until nothing is being
  // freed, which ends soon. Any thread.
  void Hold(bool hold) EXCLUDES_LOCK(mutex_);
  uint64_t chunks_left() const { return chunks_left_; }  // that are to move, as far as this pass knows
  uint64_t bytes_moved() const { return bytes_moved_; }  // since the start

 private:
  // A chunk that lies here, and should not.
  struct Stray {
    Digest digest;
    Holders targets;
    Holders lacking = {};  // of these: said that they have it not
    bool is_known = true;  // all of them have answered
    bool is_ours = false;  // it is up to this node to send it
    size_t sends_failed = 0;
  };
  struct Pass {
    const Context& context;
    const std::function<bool()>& yields;
    std::set<NodeId> givers = {};  // nodes that have more than their share
    bool is_emptying = false;      // what is looked at lies in segments that are to go, on a node without room
    bool gives = false;            // this node is one of them
    Clock::time_point judged_at = {};
    Outcome outcome = {};
    std::set<NodeId> silent = {};
    std::vector<Digest> surplus = {};  // that all targets have
  };
  // What goes out to one node in one message.
  struct Parcel {
    std::vector<PutItem> items;
    std::vector<Stray*> strays;
    PeerMessage message;
    size_t bytes = 0;
  };
  bool IsFull() const;  // this node
  void Visit(Pass& pass, const std::function<bool(SegmentId)>& is_meant);
  void EmptySegments(Pass& pass);
  void JudgeBalance(Pass& pass);
  std::optional<Stray> Judge(const Pass& pass, const View& view, const Digest& digest) const;
  uint64_t CountMoves(Pass& pass);
  void Look(Pass& pass, const std::vector<Digest>& digests);
  void AskTargets(std::vector<Stray>& strays, std::set<NodeId>& silent);
  void Send(Pass& pass, std::vector<Stray>& strays);
  void Deliver(Pass& pass, const NodeId& node, Parcel parcel);
  void Free(Pass& pass) EXCLUDES_LOCK(mutex_);
  std::vector<Digest> ConfirmedElsewhere(const Pass& pass, const std::vector<Digest>& digests);

  const Parts parts_;
  const NodeId self_;
  const std::atomic<uint64_t>& bytes_per_second_max_;
  std::atomic<uint64_t> chunks_left_{0}, bytes_moved_{0};

  Mutex mutex_;
  CondVar freed_;
  bool is_held_ GUARDED_BY(mutex_) = false;
  bool is_freeing_ GUARDED_BY(mutex_) = false;
  std::stop_source stop_ GUARDED_BY(mutex_);  // of what is being freed
};

}  // namespace cairnfs::cluster
