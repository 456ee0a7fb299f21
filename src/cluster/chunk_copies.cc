#include "cluster/chunk_copies.h"

#include <algorithm>
#include <cassert>
#include <functional>
#include <utility>

#include "cluster/placement.h"

namespace cairnfs::cluster {
namespace {

constexpr std::chrono::seconds kLoadAgainAfter{5};
constexpr unsigned kCorruptMax = 3;

// A chunk that was asked about anew may hear of a node twice: from the send and from the question.
void AddOnce(Holders& holders, const NodeId& node) {
  if (!Contains(holders, node)) holders.push_back(node);
}

}  // namespace

PeerSession Situation::SessionOf(const NodeId& node) const {
  const NodeInfo* info = members->Find(node);
  return {node, info != nullptr && info->state == NodeState::kUp ? info->session : 0, epoch};
}

size_t Situation::CountTaking() const {
  return static_cast<size_t>(
      std::count_if(reachable->nodes.begin(), reachable->nodes.end(), std::mem_fn(&NodeInfo::takes_chunks)));
}

size_t Situation::CopiesNeeded() const {
  return min_replicas >= copies ? copies : std::clamp(CountTaking(), min_replicas, copies);
}

bool Situation::IsFullEverywhere() const {
  size_t up = 0;
  bool any_full = false;
  for (const NodeInfo& node : reachable->nodes) {
    if (node.state != NodeState::kUp) continue;
    ++up;
    any_full = any_full || node.full;
  }
  return any_full && up >= copies && CountTaking() < copies;
}

ChunkCopies::ChunkCopies(const Digest& digest, size_t size, Put put)
    : ChunkIdentity(digest, size, put.at, Origin::kHere),
      bytes_(std::move(put.bytes)),
      local_(put.has_room ? Local::kAbsent : Local::kNoRoom) {
  if (put.has_room) OnReserved();
}

ChunkCopies::ChunkCopies(const Digest& digest, size_t size, Clock::time_point at)
    : ChunkIdentity(digest, size, at, Origin::kElsewhere) {}

ChunkCopies::ChunkCopies(const Digest& digest, size_t size, const NodeId& self, Repair repair)
    : ChunkIdentity(digest, size, repair.at, Origin::kHere),
      bytes_(std::move(repair.bytes)),
      state_(State::kConfirming),
      local_(repair.is_here ? Local::kStored : Local::kAbsent),
      home_(self),  // nobody's claim ends with it
      holders_(std::move(repair.holders)),
      are_unconfirmed_(!holders_.empty()),
      domain_copies_(repair.domain_copies) {}

// A list may not name all who have the chunk, so repair first asks those that would get it.
ChunkCopies::Actions ChunkCopies::Begin(const Situation& situation) {
  return state_ == State::kConfirming ? ConfirmTargets(situation) : Ask(situation);
}

ChunkCopies::Actions ChunkCopies::OnHomeFailed(const Situation& situation) {
  if (state_ != State::kAsking && state_ != State::kWaiting) return {};
  return Ask(situation);
}

ChunkCopies::Actions ChunkCopies::OnHomeAnswer(const Situation& situation, const PeerSession& home,
                                               const HasAnswer& answer, bool is_here) {
  if (state_ != State::kAsking && state_ != State::kWaiting) return {};
  if (answer.kind == HasAnswer::Kind::kWait) {
    state_ = State::kWaiting;
    return {.ask_again = home_};
  }
  if (!answer.is_known() && !is_covered()) return Replicate(situation);
  const bool counts_here = is_here && local_ != Local::kBeingStored;
  if (counts_here) local_ = Local::kStored;
  listed_ = answer.holders;
  holders_.clear();
  confirming_.clear();
  Actions actions;
  if (!answer.is_known()) {
    actions = ConfirmTargets(situation);  // it lies somewhere all the same: its home was not told yet
  } else {
    for (const NodeId& holder : answer.holders) {
      const NodeInfo* info = situation.reachable->Find(holder);
      const bool answers = info != nullptr && info->state == NodeState::kUp && situation.IsUp(holder);
      if (holder == situation.self || !answers) continue;
      const bool has_it = holder == home.node && answer.kind == HasAnswer::Kind::kKnownHere && situation.Counts(home);
      (has_it ? holders_ : confirming_).push_back(holder);
    }
    // Those beyond the copies that are needed are not asked.
    while (!confirming_.empty() && CountCopies() + confirming_.size() > situation.copies) confirming_.pop_back();
    state_ = State::kConfirming;
    if (!confirming_.empty()) {
      actions.confirm = confirming_;
    } else {
      actions = CountCopies() >= situation.copies ? Complete(situation) : Replicate(situation);
    }
  }
  // The Sync that waits for it may have begun its commit before the copy came.
  actions.commit = actions.commit || counts_here;
  return actions;
}

ChunkCopies::Actions ChunkCopies::OnConfirmed(const Situation& situation, const PeerSession& peer,
                                              Confirmation confirmation) {
  // A list may name a node twice, and then it was asked twice.
  if (std::erase(confirming_, peer.node) == 0) return {};
  if (confirmation == Confirmation::kHasItNot) std::erase(listed_, peer.node);
  if (confirmation == Confirmation::kHasIt && situation.Counts(peer)) AddOnce(holders_, peer.node);
  if (!confirming_.empty()) return {};
  return CountCopies() >= situation.CopiesWanted(domain_copies_) ? Complete(situation) : Replicate(situation);
}

ChunkCopies::Actions ChunkCopies::OnSent(const Situation& situation, const PeerSession& peer, SendResult result) {
  std::erase(pending_, peer.node);
  if (is_done()) return {};
  if (result == SendResult::kDurable && situation.Counts(peer)) {
    AddOnce(holders_, peer.node);
  } else {
    has_list_changed_ = true;
    // Its bytes have changed in memory. What is stored here is verified when it is read.
    if (result == SendResult::kCorrupt && ++corrupt_count_ >= kCorruptMax) bytes_.clear();
  }
  return Advance(situation);
}

ChunkCopies::Actions ChunkCopies::OnStored(const Situation& situation, StoreResult result) {
  if (is_done()) return {};
  switch (result) {
    case StoreResult::kStored: local_ = Local::kStored; break;
    case StoreResult::kNoBytes: local_ = Local::kAbsent; break;  // they were wrong
    case StoreResult::kNotStored:
      local_ = Local::kNoRoom;
      has_list_changed_ = true;
      break;
  }
  Actions actions = Advance(situation);
  actions.commit = true;
  return actions;
}

void ChunkCopies::OnLoaded(std::vector<io::Slice> bytes) {
  if (is_done()) return;
  bytes_ = std::move(bytes);
  failure_.reset();
}

ChunkCopies::Actions ChunkCopies::OnLoadFailed(const Situation& situation, const NodeId& node, const Error& error) {
  if (is_done()) return {};
  std::erase(pending_, node);
  const bool is_damaged = error.code == ErrorCode::kCorrupt || error.code == ErrorCode::kNotFound;
  const bool was_to_be_stored = node == situation.self;
  if (was_to_be_stored || (is_damaged && local_ == Local::kStored)) local_ = Local::kAbsent;
  if (!bytes_.empty()) return Advance(situation);  // they came with a Put meanwhile
  const char* what = is_covered() ? " was put on another node or before, and cannot be read to be copied"
                                  : " was put and cannot be read back to be sent to other nodes; save it once more";
  failure_ = error.WithContext("chunk " + digest().ToHex() + what);
  load_again_at_ = situation.now + kLoadAgainAfter;
  return Advance(situation);
}

ChunkCopies::Actions ChunkCopies::OnSessionsLost(const Situation& situation, const std::vector<NodeId>& nodes) {
  const auto lost = std::erase_if(holders_, [&](const NodeId& holder) { return Contains(nodes, holder); });
  if (lost == 0 || state_ != State::kReplicating) return {};
  has_list_changed_ = true;
  return Advance(situation);
}

// What no Sync waits for counts for nobody: it ends unconfirmed.
ChunkCopies::Actions ChunkCopies::OnEpoch(const Situation& situation) {
  if (is_done()) return {};
  if (sequence() == 0) {
    are_unconfirmed_ = true;
    return {};
  }
  holders_.clear();
  confirming_.clear();
  are_unconfirmed_ = is_under_replicated_ = false;
  has_list_changed_ = true;
  failure_.reset();
  load_again_at_ = {};
  return Ask(situation);
}

// Of one that was only covered the bytes may be nowhere else, for all that this node knows.
void ChunkCopies::OnPutAgain(std::vector<io::Slice> bytes) {
  assert(NeedsBytes());
  OnPut();
  OnLoaded(std::move(bytes));
}

ChunkCopies::Actions ChunkCopies::Retry(const Situation& situation, bool is_pinned) {
  assert(is_under_replicated());
  if ((failure_ || is_covered()) && !is_pinned) return Abandon(situation);
  // Of a file that was removed before there was room, say: everything that is saved here would wait for it for good.
  const bool is_unneeded = sequence() != 0 && !is_referenced() && !is_pinned;
  if (is_unneeded && situation.IsFullEverywhere()) {
    return CountCopies() > 0 ? Complete(situation) : Abandon(situation);
  }
  // There may be room on this node again. What was dropped from memory is stored here.
  const bool has_bytes = !bytes_.empty() || is_covered();
  if (local_ == Local::kNoRoom && has_bytes && !situation.store_fails) local_ = Local::kAbsent;
  return Advance(situation);
}

ChunkCopies::Actions ChunkCopies::StoreHere() {
  if (is_done() || local_ != Local::kAbsent || bytes_.empty()) return {};
  local_ = Local::kBeingStored;
  return {.store = true};
}

bool ChunkCopies::DropBytes() {
  const bool can_be_read = local_ == Local::kStored || (is_covered() && local_ != Local::kBeingStored);
  if (!can_be_read || state_ != State::kReplicating) return false;
  bytes_.clear();
  return true;
}

// Those that have it, or are about to.
Holders ChunkCopies::ExpectedHolders(const Situation& situation) const {
  Holders holders = holders_;
  holders.insert(holders.end(), pending_.begin(), pending_.end());
  if (local_ == Local::kStored || local_ == Local::kBeingStored) holders.push_back(situation.self);
  return holders;
}

// The other nodes that should get it beside those that are expected to have it: until there are as many copies as are
// wanted of every chunk, and beyond that in new failure domains only.
std::vector<NodeId> ChunkCopies::OtherTargets(const Situation& situation) const {
  const View& view = *situation.reachable;
  std::vector<const NodeInfo*> have = FindAll(view, ExpectedHolders(situation));
  std::vector<NodeId> targets;
  auto add = [&](size_t wanted, NewDomains new_domains) {
    if (have.size() >= wanted) return;
    for (const NodeInfo* target :
         MoreTargets(view, digest(), have, wanted - have.size(), new_domains, situation.self)) {
      have.push_back(target);
      targets.push_back(target->id);
    }
  };
  add(situation.copies, NewDomains::kFirst);
  add(domain_copies_, NewDomains::kOnly);
  return targets;
}

ChunkCopies::Actions ChunkCopies::Ask(const Situation& situation) {
  state_ = State::kAsking;
  home_ = ActingHome(*situation.reachable, digest(), situation.self);
  return {.ask = home_};
}

ChunkCopies::Actions ChunkCopies::ConfirmTargets(const Situation& situation) {
  state_ = State::kConfirming;
  confirming_ = OtherTargets(situation);
  if (is_covered()) AddFullTargets(situation);
  if (confirming_.empty()) return Replicate(situation);
  return {.confirm = confirming_};
}

// One that its home does not know may lie on nodes that take no more chunks.
void ChunkCopies::AddFullTargets(const Situation& situation) {
  constexpr size_t kAskedMax = 8;
  for (const NodeInfo* node : First(*situation.reachable, digest(), kAskedMax)) {
    const bool is_full = situation.IsUp(node->id) && !node->takes_chunks();
    if (node->id != situation.self && is_full) AddOnce(confirming_, node->id);
  }
}

ChunkCopies::Actions ChunkCopies::Replicate(const Situation& situation) {
  state_ = State::kReplicating;
  has_list_changed_ = CountCopies() > 0;  // holders that were confirmed do not know of those to come
  return Advance(situation);
}

// Whether it has come to its end, and what is to be done else.
ChunkCopies::Actions ChunkCopies::Advance(const Situation& situation) {
  if (state_ != State::kReplicating) return {};
  if (CountCopies() >= situation.CopiesWanted(domain_copies_)) return Complete(situation);
  Actions actions;
  const bool waits_to_load = failure_ && situation.now < load_again_at_;
  if (!waits_to_load) {
    ChooseTargets(situation, actions);
    const bool is_under_way = !pending_.empty() || local_ == Local::kBeingStored || StartLoading(situation, actions);
    if (is_under_way) {
      is_under_replicated_ = false;
      return actions;
    }
    // What nobody waits for ends so, is counted, and is tried again by a later scan.
    const bool nobody_waits = sequence() == 0 && CountCopies() > 0;
    if (nobody_waits || CountCopies() >= situation.CopiesNeeded()) return Complete(situation);
    actions.end_repair = true;  // the repair goes on with others
  }
  is_under_replicated_ = true;
  if (!under_replicated_since_) under_replicated_since_ = situation.now;
  return actions;
}

// Until there are enough, this node first.
void ChunkCopies::ChooseTargets(const Situation& situation, Actions& actions) {
  const size_t count = ExpectedHolders(situation).size();
  if (count >= situation.CopiesWanted(domain_copies_)) return;
  const NodeInfo* self = situation.reachable->Find(situation.self);
  const bool is_wanted_here = local_ == Local::kAbsent && !bytes_.empty() && count < situation.copies;
  if (is_wanted_here && self != nullptr && self->weight > 0 && !self->full) {
    local_ = Local::kBeingStored;
    actions.store = true;
  }
  actions.send = OtherTargets(situation);
  if (!actions.store && actions.send.empty()) return;
  pending_.insert(pending_.end(), actions.send.begin(), actions.send.end());
  has_list_changed_ = has_list_changed_ || !announced_.empty();
  announced_ = ExpectedHolders(situation);
}

// What was only covered is stored here where no other node can take it. False: not now.
bool ChunkCopies::StartLoading(const Situation& situation, Actions& actions) {
  if (!is_covered() || !bytes_.empty() || local_ != Local::kAbsent) return false;
  const NodeInfo* self = situation.reachable->Find(situation.self);
  if (self == nullptr || !self->takes_chunks() || !situation.may_load) return false;
  local_ = Local::kBeingStored;
  has_list_changed_ = true;
  if (!announced_.empty() && !Contains(announced_, situation.self)) announced_.push_back(situation.self);
  actions.load = true;
  return true;
}

ChunkCopies::Actions ChunkCopies::Complete(const Situation& situation) {
  // A Sync that joined a repair trusts none but those that said that they have it.
  if (are_unconfirmed_ && sequence() != 0) {
    are_unconfirmed_ = is_under_replicated_ = false;
    domain_copies_ = 0;
    holders_.clear();
    Actions actions = Ask(situation);
    actions.end_repair = true;
    return actions;
  }
  Holders holders = holders_;
  if (local_ == Local::kStored) holders.push_back(situation.self);
  Actions actions;
  if (state_ == State::kReplicating) {
    Announce(situation, std::move(holders), actions);
  } else if (!std::all_of(holders.begin(), holders.end(),
                          [&](const NodeId& holder) { return Contains(listed_, holder); })) {
    // A copy that counts must be in the lists, or nobody makes it anew when it is lost.
    for (const NodeId& node : listed_) {
      if (node != situation.self) AddOnce(holders, node);
    }
    has_list_changed_ = true;
    Announce(situation, std::move(holders), actions);
  }
  if (CountCopies() < situation.copies) {
    Finish(Outcome::kUnderReplicated);
  } else if (CountCopies() < situation.CopiesWanted(domain_copies_)) {
    Finish(Outcome::kInFewDomains);
  } else {
    Finish(are_unconfirmed_ ? Outcome::kUnconfirmed : Outcome::kReplicated);
  }
  return actions;
}

void ChunkCopies::Announce(const Situation& situation, Holders holders, Actions& actions) {
  const NodeId& self = situation.self;
  // The holder whose part it is to make the missing copies must know of them.
  const bool has_changed =
      has_list_changed_ || holders.size() != announced_.size() || holders.size() < situation.copies;
  if (has_changed) actions.tell = holders_;
  const bool is_home = home_ == self;
  actions.list_holders = is_home || (local_ == Local::kStored && has_changed);
  actions.commit = actions.list_holders;
  actions.end_claim = is_home;
  const bool home_holds = Contains(holders_, home_);
  // A home to which the chunk came, and that waits for nobody else's copy, has ended the claim by itself.
  const bool home_knows =
      is_home || (home_holds && (has_changed || std::all_of(holders.begin(), holders.end(), [&](const NodeId& holder) {
                                   return holder == self || holder == home_;
                                 })));
  if (!home_knows) actions.tell.push_back(home_);
  actions.holders = std::move(holders);
}

// Nobody needs its bytes, which are lost, or lie nowhere yet, or were only covered. Whoever puts it gets the claim.
ChunkCopies::Actions ChunkCopies::Abandon(const Situation& situation) {
  Finish(Outcome::kAbandoned);
  return {.end_claim = home_ == situation.self};
}

void ChunkCopies::Finish(Outcome outcome) {
  end_ = {outcome, state_ == State::kReplicating, CountCopies() > 0};
  state_ = State::kDone;
  is_under_replicated_ = false;
  bytes_.clear();
}

}  // namespace cairnfs::cluster
