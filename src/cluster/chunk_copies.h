// ChunkCopies: what this node knows of the copies of one chunk that is not known to have all of them, and what is to be
// done next. A pure state machine: it has no thread, lock or clock, and does no I/O. Events go in; each returns what is
// to be done. docs/cluster/chunks.md has the table of states and events.
//
//   asking -> confirming  -> done      enough nodes have it durably
//          -> waiting     -> asking    another node has the claim
//          -> replicating -> done      it is stored here and sent to others until enough have it
//
// A replicating chunk is under-replicated while too few nodes can take it, or while its bytes cannot be read. Retry
// tries it again.
#pragma once

#include <algorithm>
#include <cassert>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cluster/holder_lists.h"
#include "cluster/peer_message.h"

namespace cairnfs::cluster {

// A node in the session that it had when it was asked or sent something, and the epoch of this host (BeginEpoch): what
// it says counts in these alone.
struct PeerSession {
  NodeId node;
  uint64_t session = 0;  // 0: it had none
  uint64_t epoch = 0;
};

// By what an event is judged.
struct Situation {
  NodeId self;
  ViewPtr members;    // a node that is not up there acknowledges nothing
  ViewPtr reachable;  // the same, and who did not answer or had no room lately counts as down or full
  size_t copies;
  size_t min_replicas;  // 1 to `copies`
  Clock::time_point now;
  bool store_fails;  // this node's own store refuses
  bool may_load;     // a chunk's bytes may be read to be stored here
  uint64_t epoch = 0;

  PeerSession SessionOf(const NodeId& node) const;
  bool IsUp(const NodeId& node) const { return SessionOf(node).session != 0; }
  bool Counts(const PeerSession& peer) const {
    return peer.session != 0 && peer.epoch == epoch && SessionOf(peer.node).session == peer.session;
  }
  size_t CountTaking() const;  // nodes that take chunks
  size_t CopiesWanted(size_t domain_copies) const { return std::max(copies, domain_copies); }
  size_t CopiesNeeded() const;    // `copies`; fewer, but `min_replicas`, where fewer nodes take chunks
  bool IsFullEverywhere() const;  // enough nodes are up, and for want of room too few of them take chunks
};

// What a chunk is, who waits for it, and whether it has room reserved on this node's disk.
class ChunkIdentity {
 public:
  enum class Origin {
    kHere,       // its bytes were put on this node, or lie here
    kElsewhere,  // it is only covered: its bytes are read where they lie
  };
  ChunkIdentity(const Digest& digest, size_t size, Clock::time_point put_at, Origin origin)
      : digest_(digest), size_(size), put_at_(put_at), is_covered_(origin == Origin::kElsewhere) {}
  const Digest& digest() const { return digest_; }
  size_t size() const { return size_; }
  Clock::time_point put_at() const { return put_at_; }
  uint64_t sequence() const { return sequence_; }  // 0: no Sync waits for it
  // A Sync waits for it from now on. `sequence` is above 0, and is set once.
  void SetSequence(uint64_t sequence) {
    assert(sequence > 0 && sequence_ == 0);
    sequence_ = sequence;
  }
  bool is_referenced() const { return is_referenced_; }  // by a record, whether it has a pin or not
  void OnReferenced() { is_referenced_ = true; }
  bool is_covered() const { return is_covered_; }
  bool WasPut() const { return sequence_ != 0 && !is_covered_; }
  bool TakeReservation() { return std::exchange(has_room_, false); }

 protected:
  void OnPut() { is_covered_ = false; }
  void OnReserved() { has_room_ = true; }

 private:
  const Digest digest_;
  const size_t size_;
  const Clock::time_point put_at_;
  bool is_covered_;
  bool has_room_ = false;
  uint64_t sequence_ = 0;
  bool is_referenced_ = false;
};

class ChunkCopies : public ChunkIdentity {
 public:
  enum class State { kAsking, kWaiting, kConfirming, kReplicating, kDone };
  // The copy on this node's disk.
  enum class Local { kAbsent, kBeingStored, kStored, kNoRoom };
  enum class Outcome {
    kReplicated,       // and all copies were confirmed
    kUnconfirmed,      // as far as a list of holders says
    kUnderReplicated,  // left to repair
    kInFewDomains,     // the same: enough copies, in too few failure domains
    kAbandoned,        // nobody needs it
  };
  struct Actions {
    std::optional<NodeId> ask = {};        // its home, who has it
    std::optional<NodeId> ask_again = {};  // the same, in a call that the home holds back
    std::vector<NodeId> confirm = {};      // ask these whether they have it
    std::vector<NodeId> send = {};         // the chunk to these
    std::vector<NodeId> tell = {};         // `holders` to these
    Holders holders = {};
    bool list_holders = false;  // `holders` are this node's list from now on
    bool store = false;         // on this node's disk
    bool load = false;          // its bytes, which are not in memory, to be stored then
    bool end_claim = false;     // this node is the home
    bool end_repair = false;    // a Sync waits for it, or too few nodes can take it
    bool commit = false;        // a copy or a list here counts that may not be durable yet
  };

  // As many bytes as `bytes` have. `has_room`: it was reserved on this node's disk.
  struct Put {
    std::vector<io::Slice> bytes;
    bool has_room;
    Clock::time_point at;
  };
  ChunkCopies(const Digest& digest, size_t size, Put put);
  // Nobody has put it here: its bytes are read where they lie.
  ChunkCopies(const Digest& digest, size_t size, Clock::time_point at);
  // Repair makes the missing copies of a chunk that lies here. No Sync waits for it.
  struct Repair {
    std::vector<io::Slice> bytes;
    Holders holders;       // the others that have it, by a list
    size_t domain_copies;  // so many are wanted, if that is more than the cluster's number
    bool is_here;          // this node's copy is sound
    Clock::time_point at;
  };
  ChunkCopies(const Digest& digest, size_t size, const NodeId& self, Repair repair);
  ChunkCopies(const ChunkCopies&) = delete;

  // Events. Those that come after its end change nothing.
  Actions Begin(const Situation& situation);
  Actions OnHomeFailed(const Situation& situation);  // it did not answer
  // `is_here`: this node has a sound copy.
  Actions OnHomeAnswer(const Situation& situation, const PeerSession& home, const HasAnswer& answer, bool is_here);
  enum class Confirmation { kHasIt, kHasItNot, kNoAnswer };
  Actions OnConfirmed(const Situation& situation, const PeerSession& peer, Confirmation confirmation);
  enum class SendResult { kDurable, kNotStored, kCorrupt };
  Actions OnSent(const Situation& situation, const PeerSession& peer, SendResult result);
  enum class StoreResult { kStored, kNotStored, kNoBytes };
  Actions OnStored(const Situation& situation, StoreResult result);
  void OnLoaded(std::vector<io::Slice> bytes);
  // Its bytes were to be sent to `node`, or to be stored here.
  Actions OnLoadFailed(const Situation& situation, const NodeId& node, const Error& error);
  // What these nodes acknowledged counts no more.
  Actions OnSessionsLost(const Situation& situation, const std::vector<NodeId>& nodes);
  // A new epoch: what any node acknowledged counts no more, and whoever has the chunk is asked anew.
  Actions OnEpoch(const Situation& situation);
  // Whether its bytes cannot be collected under whoever waits for it: in this epoch some node has said that it has it,
  // or it lies on this node, or in its memory. Also true where no node has it, all of which have answered.
  bool is_safe() const {
    return is_done() || sequence() == 0 || IsLost() || local_ == Local::kStored || !holders_.empty() ||
           (!is_covered() && !bytes_.empty());
  }
  // It was put once more. REQUIRES: NeedsBytes(), or nothing is to be done.
  bool NeedsBytes() const { return !is_done() && (failure_ || is_covered()); }
  void OnPutAgain(std::vector<io::Slice> bytes);
  // REQUIRES: is_under_replicated().
  Actions Retry(const Situation& situation, bool is_pinned);
  // This node's disk is all that a Sync asks for.
  Actions StoreHere();
  // True: its bytes have left memory, and can be read again.
  bool DropBytes();

  State state() const { return state_; }
  size_t CountCopies() const { return holders_.size() + (local_ == Local::kStored ? 1 : 0); }
  Local local() const { return local_; }
  bool is_done() const { return state_ == State::kDone; }
  bool is_under_replicated() const { return is_under_replicated_; }
  Clock::time_point under_replicated_since() const { return *under_replicated_since_; }  // for the first time
  const std::vector<io::Slice>& bytes() const { return bytes_; }
  const std::optional<Error>& failure() const { return failure_; }  // its bytes are not in memory and cannot be read
  const Holders& announced() const { return announced_; }
  struct End {
    Outcome outcome;
    bool was_new;     // copies had to be made
    bool has_copies;  // one at least
  };
  // REQUIRES: is_done().
  const End& end() const {
    assert(end_);
    return *end_;
  }

 private:
  bool IsLost() const {
    return failure_ && (failure_->code == ErrorCode::kNotFound || failure_->code == ErrorCode::kCorrupt);
  }
  Holders ExpectedHolders(const Situation& situation) const;
  std::vector<NodeId> OtherTargets(const Situation& situation) const;
  Actions Ask(const Situation& situation);
  Actions ConfirmTargets(const Situation& situation);
  void AddFullTargets(const Situation& situation);
  Actions Replicate(const Situation& situation);
  Actions Advance(const Situation& situation);
  void ChooseTargets(const Situation& situation, Actions& actions);
  bool StartLoading(const Situation& situation, Actions& actions);
  Actions Complete(const Situation& situation);
  void Announce(const Situation& situation, Holders holders, Actions& actions);
  Actions Abandon(const Situation& situation);
  void Finish(Outcome outcome);

  std::vector<io::Slice> bytes_;  // empty: to be read where they lie
  State state_ = State::kAsking;
  Local local_ = Local::kAbsent;
  NodeId home_;                    // that was asked
  Holders holders_;                // other nodes that have it durably
  bool are_unconfirmed_ = false;   // some of `holders_` are known by a list alone
  Holders listed_;                 // the home's list of holders, less those that denied it
  Holders confirming_;             // asked whether they have it
  Holders pending_;                // the chunk is on its way to these
  Holders announced_;              // the list of holders that went with it
  bool has_list_changed_ = false;  // since then
  size_t domain_copies_ = 0;
  unsigned corrupt_count_ = 0;
  std::optional<Error> failure_;
  Clock::time_point load_again_at_{};
  bool is_under_replicated_ = false;  // and nothing is under way
  std::optional<Clock::time_point> under_replicated_since_;
  std::optional<End> end_;
};
using ChunkPtr = std::shared_ptr<ChunkCopies>;

}  // namespace cairnfs::cluster
