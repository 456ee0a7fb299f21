#include "cluster/repair.h"

#include <pthread.h>

#include <algorithm>

#include "base/log.h"
#include "cluster/cluster_chunk_impl.h"
#include "cluster/placement.h"

namespace cairnfs::cluster {
namespace {

constexpr size_t kEntriesPerScan = 1024;
constexpr size_t kBytesInFlightMax = 16 * kMiB;
constexpr size_t kTellsWaitingMax = 32 * 1024;
constexpr std::chrono::seconds kAgainAfter{5};

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

void Repair::Kick() {
  MutexLock lock(mutex_);
  kicked_ = true;
  wake_.NotifyAll();
}

Repair::Progress Repair::progress() const {
  MutexLock lock(mutex_);
  return {chunks_left_.load(), missing_copies_.load(), phase_};
}

void Repair::SetPhase(const char* phase) {
  MutexLock lock(mutex_);
  phase_ = phase;
}

bool Repair::StopsWithin(std::chrono::nanoseconds time) {
  MutexLock lock(mutex_);
  const auto until = std::chrono::steady_clock::now() + time;
  while (!stopping_ && std::chrono::steady_clock::now() < until) {
    wake_.WaitFor(mutex_, until - std::chrono::steady_clock::now());
  }
  return stopping_;
}

// Once at the start too: copies may have been missing when this node stopped.
void Repair::Run() {
  pthread_setname_np(pthread_self(), "cairn-repair");
  bool again = true;
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (!kicked_ && !stopping_ && again) wake_.WaitFor(mutex_, kAgainAfter);
      while (!kicked_ && !stopping_ && !again) wake_.Wait(mutex_);
      if (stopping_) return;
      kicked_ = false;
    }
    again = !RunOnce();
    SetPhase("");
  }
}

bool Repair::RunOnce() {
  SetPhase("scanning");
  store_.short_chunks_ = 0;  // their lists say so, and are gone through now
  std::vector<Todo> todo;
  std::optional<Digest> after;
  size_t missing = 0;
  for (;;) {
    auto entries = ScanHolders(store_.engine_, after, kEntriesPerScan);
    if (!entries.ok()) {
      spdlog::error("repair: {}", entries.error().message);
      return false;
    }
    if (entries->empty()) break;
    after = entries->back().digest;
    const ViewPtr view = store_.membership_.view();
    for (const HolderEntry& entry : *entries) {
      if (auto found = Examine(entry, *view)) todo.push_back(*std::move(found));
    }
    if (StopsWithin({})) return true;
  }
  missing = todo.size();
  chunks_left_ = missing_copies_ = missing;
  if (todo.empty()) return true;
  spdlog::info("repair: {} chunks of this node lack copies", missing);
  SetPhase("copying");
  bool ok = true;
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

std::optional<Repair::Todo> Repair::Examine(const HolderEntry& entry, const View& view) {
  Holders left;  // down ones are expected back
  for (const NodeId& holder : entry.holders) {
    const NodeInfo* node = view.Find(holder);
    if (node != nullptr && node->state != NodeState::kOut) left.push_back(holder);
  }
  // Of those that have it, the first that is up does what is to be done.
  const NodeInfo* first = nullptr;
  const std::vector<const NodeInfo*> order = Order(view, entry.digest);
  for (const NodeInfo* node : order) {
    if (node->state != NodeState::kUp || std::find(left.begin(), left.end(), node->id) == left.end()) continue;
    first = node;
    break;
  }
  if (first == nullptr || first->id != store_.self_) return std::nullopt;
  Holders others = left;
  std::erase(others, store_.self_);
  const size_t possible = static_cast<size_t>(std::count_if(order.begin(), order.end(), [&](const NodeInfo* node) {
    return (node->state == NodeState::kUp && !node->full && node->weight > 0) ||
           std::find(left.begin(), left.end(), node->id) != left.end();
  }));
  if (left.size() < store_.options_.copies && possible > left.size()) return Todo{entry.digest, std::move(others)};
  if (left.size() < store_.options_.copies) store_.short_chunks_.fetch_add(1);
  // A home that is new to the chunk learns who has it.
  const NodeInfo* home = order.front();
  if (home->state == NodeState::kUp && std::find(left.begin(), left.end(), home->id) == left.end()) {
    // So many wait only when the node is slow: it gets time.
    if (store_.Tell(home->id, entry.digest, left) > kTellsWaitingMax) StopsWithin(std::chrono::milliseconds(10));
  }
  return std::nullopt;
}

bool Repair::Copy(const Todo& todo) {
  auto data = store::GetBlocking(store_, todo.digest);
  if (!data.ok()) {
    spdlog::error("repair: chunk {} cannot be read: {}", todo.digest.ToHex(), data.error().message);
    return false;
  }
  const size_t size = data->size;
  {
    MutexLock lock(mutex_);
    bytes_in_flight_ += size;
  }
  auto ended = [this, size] {
    store_.repair_bytes_.fetch_add(size);
    chunks_left_.fetch_sub(1);
    missing_copies_.fetch_sub(1);
    MutexLock lock(mutex_);
    bytes_in_flight_ -= size;
    wake_.NotifyAll();
  };
  if (!store_.Replicate(todo.digest, todo.others, *std::move(data), ended)) {
    MutexLock lock(mutex_);
    bytes_in_flight_ -= size;
    return false;
  }
  StopsWithin(std::chrono::nanoseconds(std::chrono::seconds(1)) * size / bytes_per_second_max_);
  return true;
}

// --- the store's part --------------------------------------------------------------------------------------------

bool ClusterChunkStoreImpl::Replicate(const Digest& digest, const Holders& holders, store::ChunkData data,
                                      std::function<void()> ended) {
  auto entry = std::make_shared<Entry>(digest, data.size);
  entry->slices = std::move(data.slices);
  entry->holders = holders;
  // A copy that is damaged or not there after all is stored anew.
  const bool is_here = local_.HasSound({&digest, 1})[0];
  entry->local = is_here ? Entry::Local::kStored : Entry::Local::kNone;
  entry->home = self_;  // nobody's claim ends with it
  MutexLock lock(mutex_);
  if (!pending_.try_emplace(digest, entry).second) return false;
  confirmed_.Erase(digest);
  repairs_.emplace(digest, std::move(ended));
  StartBringing(entry);
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
