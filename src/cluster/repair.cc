#include "cluster/repair.h"

#include <pthread.h>

#include <algorithm>
#include <future>
#include <map>

#include "base/clock.h"
#include "base/log.h"
#include "cluster/cluster_chunk_impl.h"
#include "cluster/placement.h"

namespace cairnfs::cluster {
namespace {

constexpr size_t kEntriesPerScan = 1024;
constexpr size_t kBytesInFlightMax = 16 * kMiB;
constexpr size_t kTellsWaitingMax = 32 * 1024;
constexpr std::chrono::nanoseconds kAgainAfter = std::chrono::seconds(5);
constexpr std::chrono::nanoseconds kAgainAfterMax = std::chrono::minutes(5);
constexpr std::chrono::nanoseconds kLookEvery = std::chrono::hours(1);
constexpr std::chrono::nanoseconds kPausePerQuestion{20'000};  // 50,000 chunks a second are asked about at most

}  // namespace

Repair::Repair(ClusterChunkStoreImpl& store, uint64_t bytes_per_second_max)
    : store_(store), bytes_per_second_max_(std::max<uint64_t>(1, bytes_per_second_max)) {
  thread_ = std::thread([this] { Run(); });
}

void Repair::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Repair::Kick(Depth depth) {
  MutexLock lock(mutex_);
  kicked_ = std::max(depth, kicked_.value_or(depth));
  wake_.NotifyAll();
}

Repair::Progress Repair::progress() const {
  MutexLock lock(mutex_);
  return {chunks_left_.load(), missing_copies_.load(), phase_, has_looked_};
}

void Repair::SetPhase(const char* phase) {
  MutexLock lock(mutex_);
  phase_ = phase;
}

bool Repair::StopsWithin(std::chrono::nanoseconds time) {
  MutexLock lock(mutex_);
  const auto until = Clock::Now() + time;
  while (!stopping_ && Clock::Now() < until) {
    wake_.WaitFor(mutex_, until - Clock::Now());
  }
  return stopping_;
}

// Once at the start too: copies may have been missing when this node stopped. And now and then without a reason, for
// what nobody noticed.
void Repair::Run() {
  pthread_setname_np(pthread_self(), "cairn-repair");
  std::chrono::nanoseconds pause = kAgainAfter;
  auto look_at = Clock::Now() + pause;
  for (;;) {
    Depth depth = Depth::kHolders;
    {
      MutexLock lock(mutex_);
      while (!kicked_ && !stopping_ && Clock::Now() < look_at) wake_.WaitFor(mutex_, look_at - Clock::Now());
      if (stopping_) return;
      depth = std::exchange(kicked_, std::nullopt).value_or(depth);
    }
    const bool ok = RunOnce(depth);
    SetPhase("");
    if (!ok) {
      look_at = Clock::Now() + pause;
      pause = std::min(2 * pause, kAgainAfterMax);
    } else if (depth == Depth::kHolders) {
      look_at = Clock::Now() + kLookEvery;
      pause = kAgainAfter;
    }
  }
}

bool Repair::RunOnce(Depth depth) {
  SetPhase("scanning");
  // What is short of copies has lists that say so, and these are gone through now.
  const uint64_t short_before = store_.short_chunks_.load(), unspread_before = store_.unspread_chunks_.load();
  std::vector<Todo> todo;
  size_t short_count = 0;
  const bool all_seen = Scan(depth, &todo, &short_count);
  if (StopsWithin({})) return true;
  const auto spread = static_cast<size_t>(
      std::count_if(todo.begin(), todo.end(), [](const Todo& one) { return one.spread_copies != 0; }));
  const size_t missing = todo.size() - spread;
  {
    MutexLock lock(mutex_);
    missing_copies_ = missing + replicating_;
    chunks_left_ = todo.size() + replicating_ + spreading_;
  }
  if (all_seen) {
    store_.short_chunks_.fetch_add(short_count);
    store_.short_chunks_.fetch_sub(short_before);
    store_.unspread_chunks_.fetch_sub(unspread_before);
    MutexLock lock(mutex_);
    has_looked_ = true;
  }
  if (todo.empty()) return all_seen;
  spdlog::info("repair: {} chunks of this node lack copies, {} lie in too few failure domains", missing, spread);
  SetPhase("copying");
  bool ok = all_seen;
  for (const Todo& one : todo) {
    {
      MutexLock lock(mutex_);
      while (bytes_in_flight_ > kBytesInFlightMax && !stopping_) wake_.Wait(mutex_);
      if (stopping_) return true;
    }
    ok = Copy(one) && ok;
  }
  // Those that are still short of copies are found by the next scan.
  for (int i = 0; i < 600; ++i) {
    {
      MutexLock lock(mutex_);
      if (bytes_in_flight_ == 0) break;
    }
    if (StopsWithin(std::chrono::milliseconds(100))) return true;
  }
  spdlog::info("repair: done, with {} chunks left", chunks_left_.load());
  return ok && chunks_left_ == 0;
}

// False: something could not be read, or somebody did not answer.
bool Repair::Scan(Depth depth, std::vector<Todo>* todo, size_t* short_count) {
  // So that the lists of this moment are seen, and no older ones.
  if (Status status = store_.commit_.CommitAndWait(); !status.ok()) {
    spdlog::warn("repair: {}", status.error().message);
    return false;
  }
  std::set<NodeId> silent;
  std::optional<Digest> after;
  for (;;) {
    auto entries = ScanHolders(store_.engine_, after, kEntriesPerScan);
    if (!entries.ok()) {
      spdlog::error("repair: {}", entries.error().message);
      return false;
    }
    if (entries->empty()) return silent.empty();
    after = entries->back().digest;
    std::vector<Finding> findings = Look(*entries);
    if (depth == Depth::kHolders) AskHolders(*entries, &findings, &silent);
    const ViewPtr view = store_.membership_.view();
    for (size_t i = 0; i < entries->size(); ++i) {
      if (auto found = Examine(depth, (*entries)[i], findings[i], *view, short_count)) {
        todo->push_back(*std::move(found));
      }
    }
    const auto pause = depth == Depth::kHolders ? kPausePerQuestion : std::chrono::nanoseconds();
    if (StopsWithin(pause * entries->size())) return true;
  }
}

std::vector<Repair::Finding> Repair::Look(const std::vector<HolderEntry>& entries) {
  std::vector<Digest> digests;
  for (const HolderEntry& entry : entries) digests.push_back(entry.digest);
  const std::vector<bool> here = store_.local_.HasSound(digests);
  std::vector<Finding> findings(entries.size());
  MutexLock lock(store_.mutex_);
  for (size_t i = 0; i < entries.size(); ++i) {
    findings[i].is_here = here[i];
    findings[i].is_being_put = store_.pending_.contains(digests[i]);
  }
  return findings;
}

void Repair::AskHolders(const std::vector<HolderEntry>& entries, std::vector<Finding>* findings,
                        std::set<NodeId>* silent) {
  const ViewPtr view = store_.membership_.view();
  std::map<NodeId, std::vector<size_t>> questions;
  for (size_t i = 0; i < entries.size(); ++i) {
    if ((*findings)[i].is_being_put) continue;
    for (const NodeId& holder : entries[i].holders) {
      const NodeInfo* node = view->Find(holder);
      if (holder == store_.self_ || node == nullptr || node->state != NodeState::kUp || silent->contains(holder)) {
        continue;
      }
      questions[holder].push_back(i);
    }
  }
  std::map<NodeId, std::future<Result<std::vector<bool>>>> answers;
  for (const auto& [node, indexes] : questions) {
    std::vector<Digest> digests;
    for (size_t i : indexes) digests.push_back(entries[i].digest);
    answers.emplace(node, store_.AskWhetherThere(node, digests));
  }
  for (auto& [node, answer] : answers) {
    const Result<std::vector<bool>> bits = answer.get();
    const std::vector<size_t>& indexes = questions[node];
    if (!bits.ok() || bits->size() != indexes.size()) {
      silent->insert(node);
      continue;
    }
    for (size_t k = 0; k < indexes.size(); ++k) {
      if (!(*bits)[k]) (*findings)[indexes[k]].denied.push_back(node);
    }
  }
}

std::optional<Repair::Todo> Repair::Examine(Depth depth, const HolderEntry& entry, const Finding& finding,
                                            const View& view, size_t* short_count) {
  if (finding.is_being_put) return std::nullopt;
  Holders left;  // down ones are expected back
  for (const NodeId& holder : entry.holders) {
    const NodeInfo* node = view.Find(holder);
    if (holder == store_.self_ || node == nullptr || node->state == NodeState::kOut) continue;
    if (!Contains(finding.denied, holder)) left.push_back(holder);
  }
  const bool is_named = Contains(entry.holders, store_.self_);
  Holders others = left;
  if (finding.is_here) left.push_back(store_.self_);
  // Of those that have it, the first that is up does what is to be done.
  const NodeInfo* first = nullptr;
  const std::vector<const NodeInfo*> order = Order(view, entry.digest);
  for (const NodeInfo* node : order) {
    if (node->state != NodeState::kUp || !Contains(left, node->id)) continue;
    first = node;
    break;
  }
  if (first == nullptr || first->id != store_.self_) return std::nullopt;
  // A home that is new to the chunk learns who has it. It became so by a change that brings a full pass; the short ones
  // in between would only say it again.
  const NodeInfo* home = order.front();
  if (depth == Depth::kHolders && home->state == NodeState::kUp && !Contains(left, home->id)) {
    // So many wait only when the node is slow: it gets time.
    if (store_.Tell(home->id, entry.digest, left) > kTellsWaitingMax) StopsWithin(std::chrono::milliseconds(10));
  }
  std::vector<const NodeInfo*> have, possible;
  for (const NodeInfo* node : order) {
    const bool has = Contains(left, node->id);
    if (has) have.push_back(node);
    if (has || node->takes_chunks()) possible.push_back(node);
  }
  const size_t copies = store_.options_.copies;
  if (left.size() < copies) {
    if (possible.size() > left.size()) return Todo{entry.digest, std::move(others)};
    ++*short_count;
  } else if (const size_t domains = DomainCount(have);
             domains < copies && domains < std::min(copies, DomainCount(possible))) {
    return Todo{entry.digest, std::move(others), left.size() + std::min(copies, DomainCount(possible)) - domains};
  }
  if (!finding.denied.empty() || !is_named) store_.commit_.SetHolders(entry.digest, left);
  return std::nullopt;
}

// Its domains may be away again since the scan.
bool Repair::CanSpread(const Todo& todo) {
  const ViewPtr view = store_.reachability_.view();
  Holders holders = todo.others;
  holders.push_back(store_.self_);
  return !MoreTargets(*view, todo.digest, FindAll(*view, holders), 1, NewDomains::kOnly).empty();
}

bool Repair::Copy(const Todo& todo) {
  const bool is_spread = todo.spread_copies != 0;
  if (is_spread && !CanSpread(todo)) {
    store_.unspread_chunks_.fetch_add(1);
    chunks_left_.fetch_sub(1);
    return true;
  }
  auto data = store::GetBlocking(store_, todo.digest);
  if (!data.ok()) {
    spdlog::error("repair: chunk {} cannot be read: {}", todo.digest.ToHex(), data.error().message);
    return false;
  }
  const size_t size = data->size;
  {
    MutexLock lock(mutex_);
    bytes_in_flight_ += size;
    ++(is_spread ? spreading_ : replicating_);
  }
  auto ended = [this, size, is_spread] {
    store_.repair_bytes_.fetch_add(size);
    MutexLock lock(mutex_);
    chunks_left_.fetch_sub(1);
    if (!is_spread) missing_copies_.fetch_sub(1);
    bytes_in_flight_ -= size;
    --(is_spread ? spreading_ : replicating_);
    wake_.NotifyAll();
  };
  if (!store_.Replicate(todo.digest, todo.others, todo.spread_copies, *std::move(data), ended)) {
    MutexLock lock(mutex_);
    bytes_in_flight_ -= size;
    --(is_spread ? spreading_ : replicating_);
    return false;
  }
  StopsWithin(std::chrono::nanoseconds(std::chrono::seconds(1)) * size / bytes_per_second_max_.load());
  return true;
}

// --- the store's part --------------------------------------------------------------------------------------------

bool ClusterChunkStoreImpl::Replicate(const Digest& digest, const Holders& holders, size_t spread_copies,
                                      store::ChunkData data, std::function<void()> ended) {
  auto entry = std::make_shared<Entry>(digest, data.size);
  entry->spread_copies = spread_copies;
  entry->slices = std::move(data.slices);
  entry->holders = holders;
  entry->hearsay = !holders.empty();  // some are down, or did not answer, or nobody asked them
  // A copy that is damaged or not there after all is stored anew.
  const bool is_here = local_.HasSound({&digest, 1})[0];
  entry->local = is_here ? Entry::Local::kStored : Entry::Local::kNone;
  entry->home = self_;  // nobody's claim ends with it
  const ViewPtr view = reachability_.view();
  MutexLock lock(mutex_);
  if (!pending_.try_emplace(digest, entry).second) return false;
  confirmed_.Erase(digest);
  repairs_.emplace(digest, std::move(ended));
  // A list may not name all who have the chunk: those that would get it now are asked first.
  ConfirmTargets(entry, *view);
  return true;
}

size_t ClusterChunkStoreImpl::Tell(const NodeId& node, const Digest& digest, const Holders& holders) {
  MutexLock lock(mutex_);
  Peer& peer = peers_[node];
  peer.sends.push_back({nullptr, digest, holders});
  SchedulePump(node);
  return peer.sends.size();
}

}  // namespace cairnfs::cluster
