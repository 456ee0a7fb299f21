// A chunk that too few nodes have: it is stored here and sent to others, until enough have it.
#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "cluster/cluster_chunk_impl.h"
#include "cluster/placement.h"

namespace cairnfs::cluster {
namespace {

constexpr size_t kRetriedPerTurn = 1024;

}  // namespace

size_t ClusterChunkStoreImpl::CopiesOf(const Entry& entry) const {
  return entry.holders.size() + (entry.local == Entry::Local::kStored ? 1 : 0);
}

unsigned ClusterChunkStoreImpl::MinReplicas() const {
  const unsigned min_replicas = min_replicas_.load();
  return std::max(1U, min_replicas == 0 ? options_.copies : std::min(min_replicas, options_.copies));
}

void ClusterChunkStoreImpl::SetMinReplicas(unsigned min_replicas) {
  min_replicas_.store(min_replicas);
  RetryAllStuck();
}

void ClusterChunkStoreImpl::SetRepairRate(uint64_t bytes_per_second_max) {
  repair_->SetRate(bytes_per_second_max);
  healing_->SetRate(bytes_per_second_max);
}

// As many as were asked for; fewer only while there are too few nodes and the operator allows it.
size_t ClusterChunkStoreImpl::CopiesNeeded() {
  const unsigned min_replicas = MinReplicas();
  if (min_replicas >= options_.copies) return options_.copies;
  const ViewPtr view = reachability_.view();
  const auto usable =
      static_cast<size_t>(std::count_if(view->nodes.begin(), view->nodes.end(), std::mem_fn(&NodeInfo::takes_chunks)));
  return std::clamp<size_t>(usable, min_replicas, options_.copies);
}

void ClusterChunkStoreImpl::StartBringing(const EntryPtr& entry) {
  entry->state = Entry::State::kBringing;
  // Holders that were confirmed do not know of those to come.
  entry->must_tell = !entry->holders.empty() || entry->local == Entry::Local::kStored;
  Settle(entry);
}

Holders ClusterChunkStoreImpl::HoldersToBe(const Entry& entry) const {
  Holders holders = entry.holders;
  holders.insert(holders.end(), entry.sending.begin(), entry.sending.end());
  if (entry.local == Entry::Local::kStored || entry.local == Entry::Local::kQueued) holders.push_back(self_);
  return holders;
}

std::vector<NodeId> ClusterChunkStoreImpl::OtherTargets(const Entry& entry, const View& view) const {
  std::vector<const NodeInfo*> have = FindAll(view, HoldersToBe(entry));
  std::vector<NodeId> targets;
  auto add = [&](size_t wanted, NewDomains new_domains) {
    if (have.size() >= wanted) return;
    for (const NodeInfo* target : MoreTargets(view, entry.digest, have, wanted - have.size(), new_domains, self_)) {
      have.push_back(target);
      targets.push_back(target->id);
    }
  };
  add(options_.copies, NewDomains::kFirst);
  add(entry.spread_copies, NewDomains::kOnly);
  return targets;
}

// Adds targets until there are enough, this node first. False: none could be added.
bool ClusterChunkStoreImpl::ChooseTargets(Entry& entry, const EntryPtr& pointer) {
  const size_t count = HoldersToBe(entry).size();
  if (count >= CopiesWanted(entry)) return false;
  const ViewPtr view = reachability_.view();
  const NodeInfo* self = view->Find(self_);
  const bool may_be_here = entry.local == Entry::Local::kNone && !entry.slices.empty() && count < options_.copies;
  const bool is_added_here = may_be_here && self != nullptr && self->weight > 0 && !self->full;
  if (is_added_here) {
    entry.local = Entry::Local::kQueued;
    put_queue_.Post([this, pointer] { PutLocally(pointer); });
  }
  const std::vector<NodeId> added = OtherTargets(entry, *view);
  if (!is_added_here && added.empty()) return false;
  entry.sending.insert(entry.sending.end(), added.begin(), added.end());
  entry.must_tell = entry.must_tell || !entry.told.empty();
  entry.told = HoldersToBe(entry);
  for (const NodeId& target : added) {
    peers_[target].sends.push_back({pointer, entry.digest, {}});
    SchedulePump(target);
  }
  return true;
}

void ClusterChunkStoreImpl::PutLocally(const EntryPtr& entry) {
  std::vector<io::Slice> slices;
  Holders told;
  {
    MutexLock lock(mutex_);
    if (entry->state == Entry::State::kDone) return;
    if (entry->slices.empty()) {  // they were wrong, which a node that they were sent to found
      entry->local = Entry::Local::kNone;
      return Settle(entry);
    }
    slices = entry->slices;
    told = entry->told;
  }
  // Nobody else was asked yet: whoever goes through the lists finds out.
  if (told.empty() && !commit_.FindHolders(entry->digest)) told = {self_};
  if (!told.empty()) commit_.SetHolders(entry->digest, told);
  auto put = commit_.Put(entry->digest, slices);
  slices.clear();
  if (put.ok()) {
    LocallyPinned(entry->digest, std::move(put->pin));
  } else {
    reachability_.NoteFull(self_);
  }
  MutexLock lock(mutex_);
  if (put.ok() && !entry->told.empty() && entry->told != told) commit_.SetHolders(entry->digest, entry->told);
  ++late_puts_;
  if (std::exchange(entry->is_reserved, false)) local_.ReleaseReservation(entry->size);
  entry->local = put.ok() ? Entry::Local::kStored : Entry::Local::kRefused;
  if (!put.ok()) {
    entry->must_tell = true;
    if (put.error().code != ErrorCode::kNoSpace) {
      spdlog::error("chunk {} is not stored on this node: {}", entry->digest.ToHex(), put.error().message);
      failure_ = put.error();
    }
  }
  Settle(entry);
  if (sync_waiters_ > 0) changed_.NotifyAll();
}

void ClusterChunkStoreImpl::NoteStuck(const EntryPtr& entry) {
  stuck_.insert(entry);
  if (entry->stuck_since == Clock::time_point{}) entry->stuck_since = Clock::Now();
}

// Looks whether the entry has come to its end, and what is to be done next.
void ClusterChunkStoreImpl::Settle(const EntryPtr& entry) {
  if (closing_ || entry->state != Entry::State::kBringing) return;
  if (CopiesOf(*entry) >= CopiesWanted(*entry)) return Complete(entry);
  if (entry->failure && Clock::Now() < entry->read_again_at) {
    NoteStuck(entry);
    return;
  }
  ChooseTargets(*entry, entry);
  if (!entry->sending.empty() || entry->local == Entry::Local::kQueued) {
    stuck_.erase(entry);
    return;
  }
  if (LoadThenPut(entry)) {
    stuck_.erase(entry);
    return;
  }
  // What nobody waits for ends short, is counted, and is tried again by a later scan.
  const bool nobody_waits = entry->sequence == 0 && CopiesOf(*entry) > 0;
  if (nobody_waits || CopiesOf(*entry) >= CopiesNeeded()) return Complete(entry);
  EndRepair(entry->digest);  // a Sync has taken it over: the repair goes on with others
  NoteStuck(entry);
  if (sync_waiters_ > 0) changed_.NotifyAll();
}

// By the membership itself: one that is lost is told of to OnViewChange afterwards, which drops what was counted
// before.
bool ClusterChunkStoreImpl::IsUp(const NodeId& node) const {
  const ViewPtr view = membership_.view();
  const NodeInfo* info = view->Find(node);
  return info != nullptr && info->state == NodeState::kUp;
}

// What these nodes acknowledged counts no more for what is not done yet.
void ClusterChunkStoreImpl::DropLost(const std::vector<NodeId>& nodes) {
  if (nodes.empty()) return;
  std::vector<EntryPtr> short_now;
  for (const auto& [digest, entry] : pending_) {
    const auto lost = std::erase_if(entry->holders, [&](const NodeId& holder) { return Contains(nodes, holder); });
    if (lost > 0 && entry->state == Entry::State::kBringing) short_now.push_back(entry);
  }
  for (const EntryPtr& entry : short_now) {
    entry->must_tell = true;
    Settle(entry);
  }
}

bool ClusterChunkStoreImpl::IsListed(const Entry& entry) const {
  if (entry.local == Entry::Local::kStored && !Contains(entry.listed, self_)) return false;
  return std::all_of(entry.holders.begin(), entry.holders.end(),
                     [&](const NodeId& holder) { return Contains(entry.listed, holder); });
}

void ClusterChunkStoreImpl::TellHolders(const Entry& entry, const Holders& holders) {
  const bool here = entry.local == Entry::Local::kStored;
  auto tell = [&](const NodeId& node) {
    mutex_.AssertHeld();
    peers_[node].sends.push_back({nullptr, entry.digest, holders});
    SchedulePump(node);
  };
  // The holder whose part it is to make the missing copies must know of them.
  const bool is_short = holders.size() < options_.copies;
  const bool has_changed = entry.must_tell || holders.size() != entry.told.size() || is_short;
  if (has_changed) {
    for (const NodeId& holder : entry.holders) tell(holder);
  }
  if (entry.home == self_ || (here && has_changed)) {
    commit_.SetHolders(entry.digest, holders);
    ++late_puts_;
  }
  if (entry.home == self_) return home_.EndClaim(entry.digest);
  const bool home_holds = Contains(entry.holders, entry.home);
  if (home_holds && has_changed) return;  // told above
  // A home to which the chunk came, and that waits for nobody else's copy, has ended the claim by itself.
  const bool home_knows = home_holds && std::all_of(holders.begin(), holders.end(), [&](const NodeId& holder) {
                            return holder == self_ || holder == entry.home;
                          });
  if (!home_knows) tell(entry.home);
}

void ClusterChunkStoreImpl::Complete(const EntryPtr& entry) {
  const bool was_brought = entry->state == Entry::State::kBringing;
  // A Sync that joined a repair trusts none but those that said that they have it.
  if (entry->hearsay && entry->sequence != 0) {
    entry->hearsay = false;
    entry->spread_copies = 0;
    EndRepair(entry->digest);
    stuck_.erase(entry);
    entry->holders.clear();
    return Ask(entry, *reachability_.view());
  }
  entry->state = Entry::State::kDone;
  Holders holders = entry->holders;
  if (entry->local == Entry::Local::kStored) holders.push_back(self_);
  if (was_brought) {
    TellHolders(*entry, holders);
  } else if (!IsListed(*entry)) {
    // A copy that counts must be in the lists, or nobody makes it anew when it is lost.
    for (const NodeId& node : entry->listed) {
      if (node != self_ && !Contains(holders, node)) holders.push_back(node);
    }
    entry->must_tell = true;
    TellHolders(*entry, holders);
  }
  const bool was_put = entry->sequence != 0 && !entry->only_covered;
  auto& counted = was_brought ? new_in_cluster_bytes_ : known_in_cluster_bytes_;
  if (was_put) counted.fetch_add(entry->size, std::memory_order_relaxed);
  if (CopiesOf(*entry) < options_.copies) {
    short_chunks_.fetch_add(1, std::memory_order_relaxed);
  } else if (CopiesOf(*entry) < CopiesWanted(*entry)) {
    unspread_chunks_.fetch_add(1, std::memory_order_relaxed);
  } else if (!entry->hearsay) {
    confirmed_.Insert(entry->digest);
  }
  Remove(entry);
}

// Nobody needs its bytes, which are lost, or lie nowhere yet, or were only covered.
void ClusterChunkStoreImpl::Abandon(const EntryPtr& entry) {
  if (entry->failure && !entry->only_covered) spdlog::error("{}", entry->failure->message);
  if (CopiesOf(*entry) > 0) short_chunks_.fetch_add(1, std::memory_order_relaxed);
  if (entry->home == self_) home_.EndClaim(entry->digest);  // whoever puts it brings it
  Remove(entry);
}

void ClusterChunkStoreImpl::Remove(const EntryPtr& entry) {
  entry->state = Entry::State::kDone;
  if (std::exchange(entry->is_reserved, false)) local_.ReleaseReservation(entry->size);
  entry->slices.clear();
  stuck_.erase(entry);
  pending_.erase(entry->digest);
  if (entry->sequence != 0) {
    unacknowledged_bytes_ -= entry->size;
    by_sequence_.erase(entry->sequence);
    in_memory_.erase(entry->sequence);
  }
  EndRepair(entry->digest);
  if (sync_waiters_ > 0) changed_.NotifyAll();
}

// An entry that was asked about anew may hear of a node twice: from the send and from the question.
void ClusterChunkStoreImpl::AddHolder(Entry& entry, const NodeId& node) {
  if (!Contains(entry.holders, node)) entry.holders.push_back(node);
}

void ClusterChunkStoreImpl::EndRepair(const Digest& digest) {
  auto repair = repairs_.find(digest);
  if (repair == repairs_.end()) return;
  work_.Post(std::move(repair->second));
  repairs_.erase(repair);
}

bool ClusterChunkStoreImpl::IsNeeded(const Entry& entry) { return entry.is_owed || IsPinned(entry.digest); }

void ClusterChunkStoreImpl::Retry(const EntryPtr& entry) {
  const bool may_be_dropped = entry->failure || entry->only_covered;
  if (may_be_dropped && !IsPinned(entry->digest)) return Abandon(entry);
  // Of a file that was removed before there was room, say: everything that is saved here would wait for it for good.
  const bool is_waited_for = entry->sequence != 0;
  if (is_waited_for && !IsNeeded(*entry) && IsFullEverywhere(*reachability_.view()))
    return CopiesOf(*entry) > 0 ? Complete(entry) : Abandon(entry);
  // There may be room on this node again. What was dropped from memory is stored here, or was only covered.
  const bool has_bytes = !entry->slices.empty() || entry->only_covered;
  if (entry->local == Entry::Local::kRefused && has_bytes && !failure_) {
    entry->local = Entry::Local::kNone;
  }
  Settle(entry);
}

// There may be hundreds of thousands, and others want the lock meanwhile.
void ClusterChunkStoreImpl::RetryAllStuck() {
  EntryPtr last;
  for (bool is_first = true;; is_first = false) {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < kRetriedPerTurn; ++i) {
      const auto next = is_first && i == 0 ? stuck_.begin() : stuck_.upper_bound(last);
      if (next == stuck_.end()) return;
      last = *next;
      Retry(last);
    }
  }
}

// Beside the nodes there are other reasons, which take longer: time to read once more, room, pins that are gone.
void ClusterChunkStoreImpl::RetryStuck() {
  std::vector<NodeId> taking;
  for (const NodeInfo& node : reachability_.view()->nodes) {
    if (node.takes_chunks()) taking.push_back(node.id);
  }
  if (taking != retried_with_) {
    retried_with_ = std::move(taking);
    return RetryAllStuck();
  }
  MutexLock lock(mutex_);
  for (size_t i = 0; i < kRetriedPerTurn; ++i) {
    const auto next = stuck_.upper_bound(retried_);
    if (next == stuck_.end()) {
      retried_.reset();
      return;
    }
    retried_ = *next;
    Retry(EntryPtr(retried_));
  }
}

}  // namespace cairnfs::cluster
