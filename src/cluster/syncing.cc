// Sync: what was put before the call has its copies.
#include <algorithm>
#include <functional>
#include <future>

#include "base/clock.h"
#include "cluster/cluster_chunk_impl.h"

namespace cairnfs::cluster {
namespace {

constexpr std::chrono::milliseconds kLookInterval{100};
constexpr std::chrono::milliseconds kFullPatience{1500};

}  // namespace

Status ClusterChunkStoreImpl::Sync() { return SyncUntil(SyncScope::kCopies, nullptr, {}); }
Status ClusterChunkStoreImpl::SyncLocal() { return SyncUntil(SyncScope::kThisNode, nullptr, {}); }

Result<ClusterChunkStore::Unreadable> ClusterChunkStoreImpl::SyncReadable(SyncScope scope, const SyncLimits& limits) {
  Unreadable unreadable;
  CAIRNFS_RETURN_IF_ERROR(SyncUntil(scope, &unreadable, limits));
  return unreadable;
}

std::vector<store::ChunkPin> ClusterChunkStoreImpl::Cover(std::span<const Sized> chunks) {
  std::vector<store::ChunkPin> pins;
  const ViewPtr view = reachability_.view();
  for (const auto& [digest, size] : chunks) {
    MutexLock lock(mutex_);  // let go between them, for there may be thousands
    if (confirmed_.Contains(digest)) continue;
    pins.push_back(MakePin(digest));
    EntryPtr& entry = pending_[digest];
    const bool is_new = entry == nullptr;
    if (is_new) {
      entry = std::make_shared<Entry>(digest, size);
      entry->only_covered = true;
    }
    CoverBySync(entry);
    if (is_new) Ask(entry, *view);
  }
  return pins;
}

void ClusterChunkStoreImpl::Owe(std::span<const Digest> chunks) {
  for (const Digest& digest : chunks) {
    MutexLock lock(mutex_);  // let go between them, for there may be thousands
    if (const auto found = pending_.find(digest); found != pending_.end()) found->second->is_owed = true;
  }
}

bool ClusterChunkStoreImpl::IsUnreadable(const Entry& entry) { return entry.failure && IsPinned(entry.digest); }

// It lies on this node's disk; a commit makes that durable.
bool ClusterChunkStoreImpl::IsPlaced(const Entry& entry, bool local_only) const {
  if (entry.local != Entry::Local::kStored) return false;
  return local_only || entry.state == Entry::State::kBringing;
}

// Durable here is all that is asked for: who else has the chunk need not be known first.
void ClusterChunkStoreImpl::PutAllLocally(uint64_t last) {
  for (auto& [sequence, entry] : by_sequence_) {
    if (sequence > last) break;
    if (entry->local != Entry::Local::kNone || entry->slices.empty()) continue;
    entry->local = Entry::Local::kQueued;
    put_queue_.Post([this, entry = entry] { PutLocally(entry); });
  }
}

bool ClusterChunkStoreImpl::IsFullEverywhere(const View& view) const {
  size_t up = 0, taking = 0;
  bool any_full = false;
  for (const NodeInfo& node : view.nodes) {
    if (node.state != NodeState::kUp) continue;
    ++up;
    any_full = any_full || node.full;
    if (node.takes_chunks()) ++taking;
  }
  return any_full && up >= options_.copies && taking < options_.copies;
}

ClusterChunkStoreImpl::AwayNodes ClusterChunkStoreImpl::NodesThatTakeNothing(const View& view) {
  AwayNodes nodes;
  for (const NodeInfo& node : view.nodes) {
    const std::string name = " " + (node.name.empty() ? node.id.ToHex() : node.name);
    if (node.state != NodeState::kUp) {
      nodes.away += name;
    } else if (node.full) {
      nodes.full += name;
    }
  }
  return nodes;
}

std::string ClusterChunkStoreImpl::WhatHelps(const View& view, const AwayNodes& nodes) const {
  const bool lacks_room = nodes.away.empty() && !nodes.full.empty();
  if (lacks_room) return "Add room or a node";
  const std::string bring = nodes.away.empty() ? "Add a node" : "Bring nodes back";
  const unsigned needed = MinReplicas();
  if (needed <= 1) return bring;
  const auto taking = std::count_if(view.nodes.begin(), view.nodes.end(), std::mem_fn(&NodeInfo::takes_chunks));
  const auto enough = std::clamp<size_t>(static_cast<size_t>(taking), 1, needed - 1);
  return bring + ", or lower min_replicas (cairnfs cluster set min-replicas " + std::to_string(enough) + ")";
}

std::string ClusterChunkStoreImpl::DescribeShortage(const View& view, const AwayNodes& nodes) const {
  const unsigned needed = MinReplicas();
  std::string text =
      std::to_string(by_sequence_.size()) + " chunks have fewer than " + std::to_string(needed) + " durable copies";
  if (!nodes.away.empty()) text += "; nodes that do not answer:" + nodes.away;
  if (!nodes.full.empty()) text += "; nodes that are full:" + nodes.full;
  if (nodes.away.empty() && nodes.full.empty()) {
    text += "; the cluster has " + std::to_string(view.nodes.size()) + " nodes";
  }
  return text + ". " + WhatHelps(view, nodes) + "; min_replicas is " + std::to_string(needed) + ", copies is " +
         std::to_string(options_.copies);
}

Error ClusterChunkStoreImpl::Shortage(std::string_view what, const View& view) {
  const AwayNodes nodes = NodesThatTakeNothing(view);
  const bool is_space = nodes.away.empty() && !nodes.full.empty();
  return MakeError(is_space ? ErrorCode::kNoSpace : ErrorCode::kUnavailable,
                   std::string(what) + ": " + DescribeShortage(view, nodes));
}

std::string ClusterChunkStoreImpl::WhatIsLacking() {
  const ViewPtr view = reachability_.view();
  MutexLock lock(mutex_);
  return by_sequence_.empty() ? "" : DescribeShortage(*view, NodesThatTakeNothing(*view));
}

size_t ClusterChunkStoreImpl::CountLacking(std::span<const Digest> chunks) {
  size_t count = 0;
  for (const Digest& digest : chunks) {
    MutexLock lock(mutex_);  // let go between them, for there may be thousands
    const auto found = pending_.find(digest);
    if (found != pending_.end() && found->second->sequence != 0) count++;
  }
  return count;
}

Status ClusterChunkStoreImpl::CheckSync(SyncCall& call) {
  if (failure_) return *failure_;
  for (const EntryPtr& entry : stuck_) {
    if (call.unreadable != nullptr) break;
    const bool is_covered = entry->sequence != 0 && entry->sequence <= call.last;
    if (is_covered && IsUnreadable(*entry)) return *entry->failure;
  }
  const ViewPtr view = reachability_.view();  // one for all: what is noticed of a node is forgotten in between
  if (options_.patience != nullptr && options_.patience->IsOver()) {
    return Shortage("this host is stopping, and the shared metadata does not answer", *view);
  }
  const auto now = Clock::Now();
  if (call.limits.check && now >= call.check_at) {
    call.check_at = now + kLookInterval;
    CAIRNFS_RETURN_IF_ERROR(call.limits.check());
  }
  if (now >= call.deadline) {
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(now - call.begun_at);
    return Shortage("waited " + std::to_string(waited.count()) + " s", *view);
  }
  if (!IsFullEverywhere(*view)) return {};  // as long as it is so, the many that may be stuck are not looked at
  const bool is_stuck = std::any_of(stuck_.begin(), stuck_.end(), [&](const EntryPtr& entry) {
    mutex_.AssertHeld();
    return entry->sequence != 0 && entry->sequence <= call.last && !entry->failure &&
           now - entry->stuck_since > kFullPatience && IsNeeded(*entry);
  });
  return is_stuck ? Shortage("no space", *view) : Status();
}

// Noted as it is passed over: a moment later it may be readable again, and on its way.
bool ClusterChunkStoreImpl::LeavesOut(const SyncCall& call, const Entry& entry) {
  if (call.unreadable == nullptr || !IsUnreadable(entry)) return false;
  call.unreadable->insert_or_assign(entry.digest, *entry.failure);
  return true;
}

Status ClusterChunkStoreImpl::WaitUntilPlaced(SyncCall& call) {
  uint64_t placed = 0;
  for (;;) {
    auto entry = by_sequence_.upper_bound(placed);
    // What was put elsewhere need not lie here, nor be readable where this node's disk alone counts.
    while (
        entry != by_sequence_.end() && entry->first <= call.last &&
        (entry->second->only_covered || IsPlaced(*entry->second, call.local_only) || LeavesOut(call, *entry->second)))
      placed = (entry++)->first;
    if (entry == by_sequence_.end() || entry->first > call.last) return {};
    // One that cannot lie here, because there is no room, is not waited for twice.
    if (!call.local_only && entry->second->local == Entry::Local::kRefused) {
      placed = entry->first;
      continue;
    }
    CAIRNFS_RETURN_IF_ERROR(CheckSync(call));
    changed_.WaitFor(mutex_, kLookInterval);
  }
}

Status ClusterChunkStoreImpl::WaitForCopies(SyncCall& call) {
  for (;;) {
    if (call.unreadable != nullptr) call.unreadable->clear();  // what was passed over before may have its copies by now
    auto first = by_sequence_.begin();
    while (first != by_sequence_.end() && first->first <= call.last && LeavesOut(call, *first->second)) ++first;
    if (first == by_sequence_.end() || first->first > call.last) return {};
    CAIRNFS_RETURN_IF_ERROR(CheckSync(call));
    changed_.WaitFor(mutex_, kLookInterval);
  }
}

Status ClusterChunkStoreImpl::SyncUntil(SyncScope scope, Unreadable* unreadable, const SyncLimits& limits) {
  const auto begun_at = Clock::Now();
  const auto deadline = std::min(begun_at + options_.sync_wait_max, limits.deadline);
  struct Waiter {
    ClusterChunkStoreImpl& store;
    explicit Waiter(ClusterChunkStoreImpl& store_in) : store(store_in) {
      store.mutex_.AssertHeld();
      ++store.sync_waiters_;
    }
    ~Waiter() {
      store.mutex_.AssertHeld();
      --store.sync_waiters_;
    }
  };
  MutexLock lock(mutex_);
  SyncCall call{scope == SyncScope::kThisNode, unreadable, limits, begun_at, deadline, begun_at, last_sequence_};
  Waiter waiter(*this);
  PumpAll();  // what waited for writers
  if (call.local_only) PutAllLocally(call.last);
  // First what lies on this node's disk, so that its sync runs beside those of the others.
  CAIRNFS_RETURN_IF_ERROR(WaitUntilPlaced(call));
  const uint64_t late_before = late_puts_;
  std::promise<Status> committed;
  const bool must_commit = commit_.uncommitted_count() > 0;
  if (must_commit) commit_.Commit([&](Status status) { committed.set_value(std::move(status)); });
  const Status waited = call.local_only ? Status() : WaitForCopies(call);
  const bool must_commit_again = waited.ok() && late_puts_ != late_before && commit_.uncommitted_count() > 0;
  lock.Unlock();
  Status status = must_commit ? committed.get_future().get() : Status();
  if (status.ok() && must_commit_again) status = commit_.CommitAndWait();
  lock.Lock();
  if (!status.ok()) return status;
  return waited;
}

}  // namespace cairnfs::cluster
