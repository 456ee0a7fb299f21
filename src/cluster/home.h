// What a node answers as the home of digests: who has a chunk, who has the claim on it.
//
// The first to ask for a chunk that nobody has gets the claim on it; others who ask are told to wait. A claim ends when
// the chunk has come, with the claimant's session, or after a bounded time; then one of those who wait gets it.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "cluster/group_commit.h"
#include "cluster/membership.h"
#include "cluster/peer_message.h"

namespace cairnfs::cluster {

class HomeClaims {
 public:
  using Respond = std::function<void(std::vector<HasAnswer>)>;
  using Post = std::function<void(std::function<void()>)>;
  // `post` runs what it is given soon, on another thread; a claim lasts for `claim_time_max` at most.
  HomeClaims(GroupCommit& commit, Membership& membership, Post post, std::chrono::seconds claim_time_max)
      : commit_(commit), membership_(membership), post_(std::move(post)), claim_time_max_(claim_time_max) {}

  // One answer per digest, at once.
  std::vector<HasAnswer> Ask(const std::vector<Digest>& digests, const NodeId& caller) EXCLUDES_LOCK(mutex_);
  // As Ask, but while all answers would be kWait, the answer is held back for a bounded time; `respond` is called by
  // any thread, at once or after Tick.
  void AskAndHold(std::vector<Digest> digests, const NodeId& caller, Respond respond) EXCLUDES_LOCK(mutex_);
  // The chunk has its copies, or is given up: the claim on it ends.
  void EndClaim(const Digest& digest) EXCLUDES_LOCK(mutex_);
  // Ends claims that are over, and answers what was held long enough. To be called many times per second.
  void Tick() EXCLUDES_LOCK(mutex_);
  // Answers all that is held, before it returns.
  void Close() EXCLUDES_LOCK(mutex_);

 private:
  struct Claim {
    NodeId claimant;
    uint64_t session;
    Clock::time_point until;
  };
  struct Held {
    std::vector<Digest> digests;
    NodeId caller;
    Respond respond;
    Clock::time_point until;  // answered then at the latest
    bool any_came = false;
  };
  using HeldPtr = std::shared_ptr<Held>;

  bool IsOver(const Claim& claim, const View& view, Clock::time_point now) const;
  // Of a chunk on which there is a claim.
  static HasAnswer AnswerOf(const Claim& claim, const NodeId& caller) {
    return {claim.claimant == caller ? HasAnswer::Kind::kClaim : HasAnswer::Kind::kWait, {}};
  }
  HasAnswer Find(const Digest& digest, GroupCommit::Presence here, const View& view);
  void AskAgain(const std::vector<Digest>& digests, const std::vector<size_t>& indexes, const Claim& own,
                const View& view, std::vector<HasAnswer>& answers) EXCLUDES_LOCK(mutex_);
  void EndClaimLocked(const Digest& digest) REQUIRES_LOCK(mutex_);
  std::vector<HeldPtr> TakeDue(Clock::time_point now) REQUIRES_LOCK(mutex_);
  void Answer(const Held& held) EXCLUDES_LOCK(mutex_) { held.respond(Ask(held.digests, held.caller)); }
  void EndOldClaims(const View& view, Clock::time_point now) REQUIRES_LOCK(mutex_);
  void NoteCame(const Digest& digest, Clock::time_point now) REQUIRES_LOCK(mutex_);

  GroupCommit& commit_;
  Membership& membership_;
  const Post post_;
  const std::chrono::seconds claim_time_max_;
  Mutex mutex_;
  bool closed_ GUARDED_BY(mutex_) = false;
  std::unordered_map<Digest, Claim, DigestHash> claims_ GUARDED_BY(mutex_);
  // When Tick looks through all claims again, and the nodes as they were at the last time.
  Clock::time_point look_at_ GUARDED_BY(mutex_){};
  ViewPtr looked_with_ GUARDED_BY(mutex_);
  uint64_t ended_count_ GUARDED_BY(mutex_) = 0;  // claims that are there no more
  // Hundreds of hosts may wait for one digest, each for hundreds of digests.
  std::unordered_map<Digest, std::unordered_set<HeldPtr>, DigestHash> waiting_ GUARDED_BY(mutex_);
  std::list<HeldPtr> held_ GUARDED_BY(mutex_);
  std::unordered_map<NodeId, size_t, NodeIdHash> held_of_ GUARDED_BY(mutex_);  // by caller; none: absent
};

}  // namespace cairnfs::cluster
