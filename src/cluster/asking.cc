// Who has a chunk that was put: its home is asked, and the nodes that the home names confirm.
#include <algorithm>

#include "base/clock.h"
#include "cluster/cluster_chunk_impl.h"
#include "cluster/peer_call.h"
#include "cluster/placement.h"

namespace cairnfs::cluster {
namespace {

constexpr unsigned kHeldAsksMax = 4;
constexpr size_t kAskedBesideWriters = 32;  // fewer wait until writers have gone first

template <typename T>
std::vector<T> TakeFront(std::deque<T>& queue, size_t count_max) {
  const size_t count = std::min(queue.size(), count_max);
  std::vector<T> taken(std::make_move_iterator(queue.begin()),
                       std::make_move_iterator(queue.begin() + static_cast<std::ptrdiff_t>(count)));
  queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(count));
  return taken;
}

std::vector<Digest> DigestsOf(const auto& entries) {
  std::vector<Digest> digests;
  digests.reserve(entries.size());
  for (const auto& entry : entries) digests.push_back(entry->digest);
  return digests;
}

}  // namespace

void ClusterChunkStoreImpl::Ask(const EntryPtr& entry, const View& view) {
  entry->state = Entry::State::kAsking;
  entry->home = ActingHome(view, entry->digest, self_);
  peers_[entry->home].asks.push_back(entry);
  SchedulePump(entry->home);
}

// One question at a time is under way, so that the next gathers; more when it has become a full message.
bool ClusterChunkStoreImpl::StartAsks(const NodeId& node, bool hold) {
  std::vector<EntryPtr> entries;
  {
    MutexLock lock(mutex_);
    Peer& peer = peers_[node];
    auto& queue = hold ? peer.waits : peer.asks;
    unsigned& running = hold ? peer.waits_running : peer.asks_running;
    if (!peer.asks_busy.MaySend(Clock::Now(), 0)) return false;
    if (queue.empty() || (running > 0 && queue.size() < kDigestsPerMessageMax)) return false;
    if (hold && running >= kHeldAsksMax) return false;
    if (queue.size() < kAskedBesideWriters && WritersGoFirst()) {  // the ticker comes by
      ++put_off_;
      return false;
    }
    entries = TakeFront(queue, kDigestsPerMessageMax);
    ++running;
  }
  std::vector<Digest> digests = DigestsOf(entries);
  auto on_answers = [this, node, hold, entries](Result<std::vector<HasAnswer>> answers) {
    OnAsked(node, hold, entries, std::move(answers));
  };
  if (node != self_) {
    PeerMessage request{HasRequest{hold, std::move(digests)}.Encode(), {}};
    const auto timeout = hold ? options_.timeouts.ask_and_hold : options_.timeouts.ask;
    Call<std::vector<HasAnswer>>(node, PeerMethod::kHas, std::move(request), timeout, DecodeHasReply,
                                 std::move(on_answers));
  } else if (hold) {
    home_.AskAndHold(std::move(digests), self_, [this, on_answers](std::vector<HasAnswer> answers) {
      work_.Post([on_answers, answers = std::move(answers)] { on_answers(answers); });
    });
  } else {
    on_answers(home_.Ask(digests, self_));
  }
  return true;
}

void ClusterChunkStoreImpl::OnAsked(const NodeId& node, bool hold, const std::vector<EntryPtr>& entries,
                                    Result<std::vector<HasAnswer>> answers) {
  const bool ok = answers.ok() && answers->size() == entries.size();
  const bool is_busy = !answers.ok() && answers.error().code == ErrorCode::kBusy;
  if (!ok && !is_busy) reachability_.NoteFailed(node);
  std::vector<bool> is_here(entries.size());
  if (ok) is_here = local_.HasSound(DigestsOf(entries));
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!is_here[i] || !(*answers)[i].is_known()) continue;
    Holders holders = (*answers)[i].holders;  // and this node's copy counts, so repair must see it
    if (!Contains(holders, self_)) holders.push_back(self_);
    commit_.SetHoldersIfNone(entries[i]->digest, std::move(holders));
  }
  const ViewPtr view = reachability_.view();
  MutexLock lock(mutex_);
  Peer& peer = peers_[node];
  --(hold ? peer.waits_running : peer.asks_running);
  if (is_busy) return AskAgainLater(node, hold ? peer.waits : peer.asks, entries);
  if (!ok) {
    // Whatever else waits for this node goes to the next one as well.
    std::vector<EntryPtr> all = entries;
    for (auto* queue : {&peer.asks, &peer.waits}) {
      all.insert(all.end(), queue->begin(), queue->end());
      queue->clear();
    }
    for (const EntryPtr& entry : all) Ask(entry, *view);
    return;
  }
  peer.asks_busy.NoteTaken();
  for (size_t i = 0; i < entries.size(); ++i) OnAnswer(node, entries[i], (*answers)[i], is_here[i], *view);
  SchedulePump(node);
}

void ClusterChunkStoreImpl::OnAnswer(const NodeId& node, const EntryPtr& entry, const HasAnswer& answer, bool is_here,
                                     const View& view) {
  if (answer.kind == HasAnswer::Kind::kWait) {
    entry->state = Entry::State::kWaiting;
    peers_[node].waits.push_back(entry);
    return;
  }
  if (!answer.is_known() && !entry->only_covered) return StartBringing(entry);
  // This node's own copy counts: the Sync that waits for the entry makes it durable, if it is not. It may have begun
  // its commit before the copy came.
  if (is_here && entry->local != Entry::Local::kQueued) {
    entry->local = Entry::Local::kStored;
    ++late_puts_;
  }
  entry->listed = answer.holders;
  entry->holders.clear();
  entry->confirming.clear();
  // It lies somewhere all the same: its home was not told yet.
  if (!answer.is_known()) return ConfirmTargets(entry, view);
  for (const NodeId& holder : answer.holders) {
    if (holder == self_) continue;
    const NodeInfo* info = view.Find(holder);
    if (info == nullptr || info->state != NodeState::kUp || !IsUp(holder)) continue;
    if (holder == node && answer.kind == HasAnswer::Kind::kKnownHere) {
      entry->holders.push_back(holder);
    } else {
      entry->confirming.push_back(holder);
    }
  }
  // Those beyond the copies that are needed are not asked.
  while (!entry->confirming.empty() && CopiesOf(*entry) + entry->confirming.size() > options_.copies) {
    entry->confirming.pop_back();
  }
  if (entry->confirming.empty()) {
    entry->state = Entry::State::kConfirming;
    if (CopiesOf(*entry) >= options_.copies) return Complete(entry);
    return StartBringing(entry);
  }
  entry->state = Entry::State::kConfirming;
  for (const NodeId& holder : entry->confirming) {
    peers_[holder].confirms.push_back(entry);
    SchedulePump(holder);
  }
}

// A node that is busy is not down: the ticker comes by.
void ClusterChunkStoreImpl::AskAgainLater(const NodeId& node, std::deque<EntryPtr>& queue,
                                          const std::vector<EntryPtr>& entries) {
  peers_[node].asks_busy.NoteBusy(Clock::Now());
  queue.insert(queue.begin(), entries.begin(), entries.end());
}

void ClusterChunkStoreImpl::ConfirmTargets(const EntryPtr& entry, const View& view) {
  entry->state = Entry::State::kConfirming;
  const std::vector<NodeId> targets = OtherTargets(*entry, view);
  entry->confirming.insert(entry->confirming.end(), targets.begin(), targets.end());
  if (entry->confirming.empty()) return StartBringing(entry);
  for (const NodeId& target : entry->confirming) {
    peers_[target].confirms.push_back(entry);
    SchedulePump(target);
  }
}

bool ClusterChunkStoreImpl::StartConfirms(const NodeId& node) {
  std::vector<EntryPtr> entries;
  {
    MutexLock lock(mutex_);
    Peer& peer = peers_[node];
    if (peer.confirms.empty() || !peer.asks_busy.MaySend(Clock::Now(), 0)) return false;
    if (peer.confirms_running > 0 && peer.confirms.size() < kDigestsPerMessageMax) return false;
    entries = TakeFront(peer.confirms, kDigestsPerMessageMax);
    ++peer.confirms_running;
  }
  PeerMessage request{EncodeDigests(DigestsOf(entries)), {}};
  Call<std::vector<bool>>(
      node, PeerMethod::kConfirm, std::move(request), options_.timeouts.confirm, DecodeBits,
      [this, node, entries](Result<std::vector<bool>> bits) { OnConfirmed(node, entries, std::move(bits)); });
  return true;
}

void ClusterChunkStoreImpl::OnConfirmed(const NodeId& node, const std::vector<EntryPtr>& entries,
                                        Result<std::vector<bool>> bits) {
  const bool ok = bits.ok() && bits->size() == entries.size();
  const bool is_busy = !bits.ok() && bits.error().code == ErrorCode::kBusy;
  if (!ok && !is_busy) reachability_.NoteFailed(node);
  MutexLock lock(mutex_);
  Peer& peer = peers_[node];
  --peer.confirms_running;
  if (is_busy) return AskAgainLater(node, peer.confirms, entries);
  if (ok) peer.asks_busy.NoteTaken();
  for (size_t i = 0; i < entries.size(); ++i) {
    const EntryPtr& entry = entries[i];
    // A list may name a node twice, and then it was asked twice.
    if (std::erase(entry->confirming, node) == 0) continue;
    if (ok && !(*bits)[i]) std::erase(entry->listed, node);
    if (ok && (*bits)[i] && IsUp(node)) AddHolder(*entry, node);
    if (!entry->confirming.empty()) continue;
    if (CopiesOf(*entry) >= CopiesWanted(*entry)) {
      Complete(entry);
    } else {
      StartBringing(entry);
    }
  }
  SchedulePump(node);
}

}  // namespace cairnfs::cluster
