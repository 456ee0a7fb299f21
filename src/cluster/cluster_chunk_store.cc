#include "cluster/cluster_chunk_store.h"

#include <pthread.h>

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "cluster/cluster_chunk_impl.h"
#include "cluster/peer_call.h"
#include "cluster/placement.h"

namespace cairnfs::cluster {
namespace {

constexpr std::chrono::milliseconds kTickInterval{20};
constexpr std::chrono::milliseconds kSlowTickInterval{500};
constexpr std::chrono::milliseconds kRetryInterval{200};
constexpr std::chrono::seconds kSlicesKeptFor{2};
constexpr uint64_t kFullBytes = 8 * kMiB;  // less room than this is none
constexpr size_t kUncommittedMax = 16 * 1024;
constexpr std::chrono::seconds kShortInterval{2};
constexpr std::chrono::seconds kShortIntervalMax{160};

}  // namespace

ClusterChunkStoreImpl::ClusterChunkStoreImpl(store::LocalChunkStore& local, kv::KvEngine& engine, io::BufferPool& pool,
                                             Membership& membership, const ClusterChunkOptions& options)
    : local_(local),
      engine_(engine),
      pool_(pool),
      membership_(membership),
      options_(options),
      self_(membership.self()),
      min_replicas_(options.min_replicas),
      reachability_(membership),
      commit_(local, engine),
      home_(
          commit_, membership, [this](std::function<void()> task) { work_.Post(std::move(task)); },
          options.claim_time_max),
      client_(membership, options.connections_per_peer, wire_, options.timeouts.connect),
      reader_({pool, client_, membership, reachability_, commit_, local.cache()}),
      waiting_reads_(
          [this](const Digest& digest, RemoteReader::FetchCallback done) {
            work_.Post([this, digest, done = std::move(done)] { GetOnce(digest, done); });
          },
          options.read_wait_max),
      shared_reads_(options.shared_reads_last),
      put_queue_("cairn-put", 2, TaskQueue::Priority::kBackground),
      work_("cairn-peers", 2, TaskQueue::Priority::kBackground) {
  {
    MutexLock lock(mutex_);
    last_view_ = membership.view();
  }
  repair_ = std::make_unique<Repair>(*this, options.repair_bytes_per_second_max);
  healing_ = std::make_unique<Healing>(*this, options.repair_bytes_per_second_max);
  view_subscription_ = membership.OnChange([this](const ViewPtr& view) { OnViewChange(view); });
  ticker_ = std::thread([this] { Tick(); });
  local_.SetDamageHandler([this](const Digest& digest) { healing_->Add(digest); });
}

// What waits for copies stays short of them. Everything that is under way ends before the parts that it uses.
ClusterChunkStoreImpl::~ClusterChunkStoreImpl() {
  local_.SetDamageHandler({});
  view_subscription_.reset();
  {
    MutexLock lock(mutex_);
    closing_ = true;
  }
  {
    MutexLock lock(ticker_mutex_);
    stopping_ = true;
    ticker_wake_.NotifyAll();
  }
  waiting_reads_.Close();
  client_.Close();
  home_.Close();
  ticker_.join();
  repair_->Stop();
  healing_->Stop();
  waiting_reads_.AwaitAttempts();
  reader_.AwaitIdle();
  client_.AwaitCalls();
  MutexLock lock(mutex_);
  while (loads_ > 0) changed_.Wait(mutex_);
}

std::unique_ptr<ClusterChunkStore> ClusterChunkStore::Create(store::LocalChunkStore& local, kv::KvEngine& engine,
                                                             io::BufferPool& pool, Membership& membership,
                                                             const ClusterChunkOptions& options) {
  return std::make_unique<ClusterChunkStoreImpl>(local, engine, pool, membership, options);
}

// --- putting -----------------------------------------------------------------------------------------------------

bool ClusterChunkStoreImpl::OthersMayTake() {
  const ViewPtr view = reachability_.view();
  const auto count =
      static_cast<size_t>(std::count_if(view->nodes.begin(), view->nodes.end(),
                                        [&](const NodeInfo& node) { return node.id != self_ && node.takes_chunks(); }));
  return count >= MinReplicas();
}

// A repair of the chunk may be under way, which no Sync waits for: from now on those that begin later do.
void ClusterChunkStoreImpl::CoverBySync(const EntryPtr& entry) {
  if (entry->sequence != 0) return;
  entry->sequence = ++last_sequence_;
  by_sequence_.emplace(last_sequence_, entry);
  if (!entry->slices.empty()) in_memory_.insert(last_sequence_);
  unacknowledged_bytes_ += entry->size;
}

// Of a chunk that waits for its copies: the first Put of it counts once it has them.
void ClusterChunkStoreImpl::PutAgain(const EntryPtr& entry, std::span<const io::Slice> slices) {
  const bool was_put = entry->sequence != 0 && !entry->only_covered;
  if (was_put) known_in_cluster_bytes_.fetch_add(entry->size, std::memory_order_relaxed);
  CoverBySync(entry);
  TakeBytesAgain(*entry, slices);
}

Result<store::PutResult> ClusterChunkStoreImpl::Put(const Digest& digest, std::span<const io::Slice> slices) {
  size_t size = 0;
  for (const io::Slice& slice : slices) size += slice.size;
  if (size == 0 || size > kPayloadBytesFull) {
    return MakeError(ErrorCode::kInvalidArgument, "a chunk of " + std::to_string(size) + " bytes; 1 to " +
                                                      std::to_string(kPayloadBytesFull) + " are possible");
  }
  {
    MutexLock lock(mutex_);
    if (failure_) return *failure_;
    const bool is_known = confirmed_.Contains(digest);
    if (is_known) known_in_cluster_bytes_.fetch_add(size, std::memory_order_relaxed);
    if (is_known) return store::PutResult{MakePin(digest), false};
    if (auto found = pending_.find(digest); found != pending_.end()) {
      PutAgain(found->second, slices);
      return store::PutResult{MakePin(digest), false};
    }
  }
  // Room for it is reserved until it lies here, or is known not to have to.
  const bool is_reserved = local_.TryReserve(size);
  if (!is_reserved) {
    if (!OthersMayTake()) {
      return MakeError(ErrorCode::kNoSpace, "no space on this node, nor on enough others");
    }
    reachability_.NoteFull(self_);
  }
  auto entry = std::make_shared<Entry>(digest, size);
  entry->slices = KeepAlive(slices);
  entry->is_reserved = is_reserved;
  if (!is_reserved) entry->local = Entry::Local::kRefused;
  const ViewPtr view = reachability_.view();
  MutexLock lock(mutex_);
  auto [found, is_new] = pending_.try_emplace(digest, entry);
  if (!is_new) {
    if (is_reserved) local_.ReleaseReservation(size);
    PutAgain(found->second, slices);
    return store::PutResult{MakePin(digest), false};
  }
  CoverBySync(entry);
  last_put_at_ = entry->put_at;
  Ask(entry, *view);
  return store::PutResult{MakePin(digest), true};
}

// --- pins --------------------------------------------------------------------------------------------------------

store::ChunkPin ClusterChunkStoreImpl::MakePin(const Digest& digest) {
  MutexLock lock(pins_mutex_);
  ++pins_[digest].count;
  return {this, digest};
}

bool ClusterChunkStoreImpl::IsPinned(const Digest& digest) {
  MutexLock lock(pins_mutex_);
  return pins_.contains(digest);
}

// The local pin lives as long as there are pins of the chunk. False: there are none.
bool ClusterChunkStoreImpl::LocallyPinned(const Digest& digest, store::ChunkPin pin) {
  MutexLock lock(pins_mutex_);
  auto found = pins_.find(digest);
  if (found == pins_.end()) return false;
  std::swap(found->second.local, pin);
  lock.Unlock();
  return true;
}

// Nothing is collected in a cluster yet, so a chunk that a record names is there: nobody is asked.
Result<store::ChunkPin> ClusterChunkStoreImpl::Pin(const Digest& digest) {
  store::ChunkPin pin = MakePin(digest);
  auto local = local_.Pin(digest);
  if (local.ok()) {
    LocallyPinned(digest, *std::move(local));
  } else if (local.error().code != ErrorCode::kNotFound) {
    return local.error();
  }
  return pin;
}

void ClusterChunkStoreImpl::Unpin(const Digest& digest) {
  store::ChunkPin local;  // ends after the lock
  MutexLock lock(pins_mutex_);
  auto found = pins_.find(digest);
  if (found == pins_.end() || --found->second.count > 0) return;
  local = std::move(found->second.local);
  pins_.erase(found);
  lock.Unlock();
}

// --- looking up and reading --------------------------------------------------------------------------------------

std::future<Result<std::vector<bool>>> ClusterChunkStoreImpl::AskWhetherThere(const NodeId& node,
                                                                              const std::vector<Digest>& digests) {
  auto promise = std::make_shared<std::promise<Result<std::vector<bool>>>>();
  auto answer = promise->get_future();
  Call<std::vector<bool>>(node, PeerMethod::kConfirm, {EncodeDigests(digests), {}}, options_.timeouts.has, DecodeBits,
                          [promise](Result<std::vector<bool>> bits) { promise->set_value(std::move(bits)); });
  return answer;
}

std::vector<bool> ClusterChunkStoreImpl::Has(std::span<const Digest> digests) {
  std::vector<bool> has = local_.Has(digests);
  std::unordered_map<NodeId, std::vector<size_t>, NodeIdHash> questions;
  const ViewPtr view = reachability_.view();
  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < digests.size(); ++i) {
      has[i] = has[i] || pending_.contains(digests[i]) || confirmed_.Contains(digests[i]);
      if (has[i]) continue;
      for (const NodeInfo* node : Order(*view, digests[i])) {
        if (node->id != self_ && node->state == NodeState::kUp) questions[node->id].push_back(i);
      }
    }
  }
  for (auto& [node, indexes] : questions) {
    std::erase_if(indexes, [&](size_t i) { return has[i]; });
    for (size_t begin = 0; begin < indexes.size(); begin += kDigestsPerMessageMax) {
      const size_t end = std::min(indexes.size(), begin + kDigestsPerMessageMax);
      std::vector<Digest> asked;
      for (size_t k = begin; k < end; ++k) asked.push_back(digests[indexes[k]]);
      auto bits = AskWhetherThere(node, asked).get();
      if (!bits.ok() || bits->size() != asked.size()) continue;
      for (size_t k = begin; k < end; ++k) has[indexes[k]] = has[indexes[k]] || (*bits)[k - begin];
    }
  }
  return has;
}

std::optional<store::ChunkData> ClusterChunkStoreImpl::FindPending(const Digest& digest) {
  MutexLock lock(mutex_);
  auto found = pending_.find(digest);
  if (found == pending_.end() || found->second->slices.empty()) return std::nullopt;
  return store::ChunkData{found->second->slices, found->second->size};
}

void ClusterChunkStoreImpl::Get(const Digest& digest, store::ChunkCallback done) {
  GetOnce(digest, [done = std::move(done)](Result<store::ChunkData> data, const auto&) { done(std::move(data)); });
}

void ClusterChunkStoreImpl::GetForReader(const Digest& digest, store::ChunkCallback done) {
  GetOnce(digest, [this, digest, began = Clock::Now(), done = std::move(done)](Result<store::ChunkData> data,
                                                                               const auto& away_since) {
    if (data.ok() || !away_since) return done(std::move(data));
    waiting_reads_.Add({digest, began, done}, data.error(), *away_since);
  });
}

void ClusterChunkStoreImpl::GetOnce(const Digest& digest, RemoteReader::FetchCallback done) {
  if (auto pending = FindPending(digest)) return done(*std::move(pending), {});
  shared_reads_.NoteRead(digest);
  if (!shared_reads_.AreGoingOn() || !IsReadElsewhere(*reachability_.view(), digest)) {
    return GetLocalFirst(digest, std::move(done));
  }
  if (auto cached = local_.FindCached(digest)) return done(*std::move(cached), {});
  reader_.Fetch(digest, [this, digest, done = std::move(done)](Result<store::ChunkData> data, const auto&) {
    if (data.ok()) return done(std::move(data), {});
    GetLocalFirst(digest, done);
  });
}

// Hosts that read the same at once meet at the chunk's home, whose disk reads it once.
bool ClusterChunkStoreImpl::IsReadElsewhere(const View& view, const Digest& digest) const {
  return ActingHome(view, digest, self_) != self_;
}

void ClusterChunkStoreImpl::GetLocalFirst(const Digest& digest, RemoteReader::FetchCallback done) {
  local_.Get(digest, [this, digest, done = std::move(done)](Result<store::ChunkData> data) {
    if (data.ok()) return done(std::move(data), {});
    OnLocalMiss(digest, data.error(), done);
  });
}

// The own store has it not, or in vain: another node has. What was damaged here is replaced.
void ClusterChunkStoreImpl::OnLocalMiss(const Digest& digest, const Error& error, RemoteReader::FetchCallback done) {
  const bool is_bad = error.code != ErrorCode::kNotFound;
  if (is_bad) {  // one copy fewer than was confirmed, unless it is replaced
    MutexLock lock(mutex_);
    confirmed_.Erase(digest);
  }
  reader_.Fetch(digest, [this, digest, error, is_bad, done = std::move(done)](Result<store::ChunkData> data,
                                                                              const auto& away_since) {
    if (!is_bad) return done(std::move(data), away_since);
    if (!data.ok()) return done(error, away_since);
    put_queue_.Post([this, digest, good = *data] { Heal(digest, good); });
    done(std::move(data), {});
  });
}

// False: it stays damaged.
bool ClusterChunkStoreImpl::Heal(const Digest& digest, const store::ChunkData& data) {
  auto put = commit_.Put(digest, data.slices);
  if (!put.ok()) {
    spdlog::error("chunk {} is damaged here and could not be replaced: {}", digest.ToHex(), put.error().message);
  } else if (put->is_new) {
    spdlog::warn("chunk {} was damaged on this node and is replaced by another node's copy", digest.ToHex());
    commit_.Commit([](const Status&) {});
  }
  return put.ok();
}

void ClusterChunkStoreImpl::ReplaceDamaged(const Digest& digest, std::function<void(std::optional<size_t>)> ended) {
  if (local_.HasSound({&digest, 1})[0]) return ended(0);  // it was read, or written again
  {
    MutexLock lock(mutex_);
    confirmed_.Erase(digest);
  }
  reader_.Fetch(digest, [this, digest, ended = std::move(ended)](Result<store::ChunkData> data, const auto&) {
    if (!data.ok()) return ended(std::nullopt);
    put_queue_.Post([this, digest, ended, good = *std::move(data)] {
      ended(Heal(digest, good) ? std::optional<size_t>(good.size) : std::nullopt);
    });
  });
}

void ClusterChunkStoreImpl::Prefetch(std::span<const Digest> digests) {
  const bool is_shared = shared_reads_.AreGoingOn();
  const ViewPtr view = reachability_.view();
  const std::vector<bool> has = local_.Has(digests);
  std::vector<Digest> own;
  for (size_t i = 0; i < digests.size(); ++i) {
    if (has[i] && !(is_shared && IsReadElsewhere(*view, digests[i]))) {
      own.push_back(digests[i]);
    } else if (!FindPending(digests[i])) {
      reader_.Prefetch(digests[i]);
    }
  }
  local_.Prefetch(own);
}

// --- background --------------------------------------------------------------------------------------------------

void ClusterChunkStoreImpl::OnViewChange(const ViewPtr& view) {
  reachability_.Reset();
  ViewPtr before;
  bool any_out = false, any_new = false, any_room = false;
  std::vector<NodeId> lost, down, came;
  {
    MutexLock lock(mutex_);
    before = std::exchange(last_view_, view);
  }
  for (const NodeInfo& old : before->nodes) {
    const NodeInfo* now = view->Find(old.id);
    const bool is_up = now != nullptr && now->state == NodeState::kUp;
    if (old.state == NodeState::kUp && (!is_up || now->session != old.session)) {
      lost.push_back(old.id);
      if (!is_up) down.push_back(old.id);
    }
    if (old.state != NodeState::kOut && (now == nullptr || now->state == NodeState::kOut)) any_out = true;
  }
  for (const NodeInfo& now : view->nodes) {
    const NodeInfo* old = before->Find(now.id);
    const bool takes = now.state == NodeState::kUp && !now.full;
    const bool took = old != nullptr && old->state == NodeState::kUp && !old->full;
    any_room = any_room || (takes && !took);
    const bool was_up = old != nullptr && old->state == NodeState::kUp;
    any_new = any_new || (now.state == NodeState::kUp && !was_up);
    if (now.state == NodeState::kUp && (!was_up || now.session != old->session)) came.push_back(now.id);
  }
  for (const NodeId& node : down) client_.EndCalls(node);
  {
    MutexLock lock(mutex_);
    if (!lost.empty() || any_out) confirmed_.Clear();
    for (const NodeId& node : down) RerouteQueue(node);
    DropLost(lost);  // also of one that is back already: what it said before its start counts no more
  }
  for (const NodeId& node : came) reader_.NoteUp(node);
  if (any_out || !came.empty()) waiting_reads_.RetryNow();
  if (!came.empty()) healing_->RetryNow();
  home_.Tick();
  RetryAllStuck();
  // A node that goes for good moves homes, and one that comes has missed what it is the home of; one that has room
  // again may take copies that are missing.
  const bool any_short = short_chunks_.load() + unspread_chunks_.load() + repair_->progress().missing_copies > 0;
  if (any_out || any_new || (any_room && any_short)) repair_->Kick(Repair::Depth::kHolders);
}

void ClusterChunkStoreImpl::LookWhetherFull() {
  const bool has_room = local_.TryReserve(is_full_ ? 2 * kFullBytes : kFullBytes);
  if (has_room) local_.ReleaseReservation(is_full_ ? 2 * kFullBytes : kFullBytes);
  if (is_full_ == !has_room) return;
  is_full_ = !has_room;
  spdlog::info("this node {}", is_full_ ? "is full, and takes no more chunks" : "has room again");
  membership_.SetFull(is_full_);
}

// Chunks that lie on this node's disk, or were only covered and lie where they were read, wait for slow or missing
// nodes without holding the buffers that writers need. While sends go on, writers wait for them instead: reading back
// costs more.
void ClusterChunkStoreImpl::DropSlicesUnderPressure() {
  if (!pool_.UnderPressure()) return;
  MutexLock lock(mutex_);
  const auto now = Clock::Now();
  for (auto sequence = in_memory_.begin(); sequence != in_memory_.end();) {
    Entry& entry = *by_sequence_.at(*sequence);
    if (now - entry.put_at < kSlicesKeptFor) break;
    const bool is_kept =
        entry.local == Entry::Local::kStored || (entry.only_covered && entry.local != Entry::Local::kQueued);
    const bool can_be_read = is_kept && entry.state == Entry::State::kBringing;
    if (can_be_read) entry.slices.clear();
    sequence = can_be_read ? in_memory_.erase(sequence) : std::next(sequence);
  }
}

// Chunks that fell short by what lasted a moment are tried again without news of the nodes: soon, when enough nodes
// take chunks, and more and more rarely, when it does not help.
void ClusterChunkStoreImpl::KickRepair(ShortWatch& watch, Clock::time_point now) {
  if (news_dropped_.exchange(false)) repair_->Kick(Repair::Depth::kHolders);
  const uint64_t count = short_chunks_.load() + unspread_chunks_.load();
  if (count == 0) watch = {};
  if (count == 0 || now - watch.kicked_at < watch.interval) return;
  const ViewPtr view = reachability_.view();
  const bool may_help = static_cast<size_t>(std::count_if(view->nodes.begin(), view->nodes.end(),
                                                          std::mem_fn(&NodeInfo::takes_chunks))) >= options_.copies;
  const bool has_grown = count > watch.count;
  watch.interval = may_help && has_grown ? kShortInterval : std::min(2 * watch.interval, kShortIntervalMax);
  watch.count = count;
  watch.kicked_at = now;
  if (may_help || watch.interval == kShortIntervalMax) repair_->Kick(Repair::Depth::kLists);
}

void ClusterChunkStoreImpl::Tick() {
  pthread_setname_np(pthread_self(), "cairn-tick");
  auto slow_at = Clock::Now(), retry_at = Clock::Now();
  ShortWatch watch;
  for (;;) {
    {
      MutexLock lock(ticker_mutex_);
      if (!stopping_) ticker_wake_.WaitFor(ticker_mutex_, kTickInterval);
      if (stopping_) return;
    }
    home_.Tick();
    waiting_reads_.Tick();
    DropSlicesUnderPressure();
    const auto now = Clock::Now();
    if (now >= retry_at) {
      retry_at = now + kRetryInterval;
      RetryStuck();
    }
    {
      MutexLock lock(mutex_);
      PumpAll();
    }
    if (now < slow_at) continue;
    slow_at = now + kSlowTickInterval;
    LookWhetherFull();
    KickRepair(watch, now);
    if (commit_.uncommitted_count() > kUncommittedMax) commit_.Commit([](const Status&) {});
  }
}

ClusterChunkStats ClusterChunkStoreImpl::ClusterStats() const {
  ClusterChunkStats stats{};
  stats.sent_bytes_total = sent_bytes_.load(std::memory_order_relaxed);
  stats.received_bytes_total = received_bytes_.load(std::memory_order_relaxed) + reader_.counters().read_bytes.load();
  stats.wire_sent_bytes_total = wire_.sent_bytes.load(std::memory_order_relaxed);
  stats.wire_received_bytes_total = wire_.received_bytes.load(std::memory_order_relaxed);
  stats.new_in_cluster_bytes_total = new_in_cluster_bytes_.load(std::memory_order_relaxed);
  stats.known_in_cluster_bytes_total = known_in_cluster_bytes_.load(std::memory_order_relaxed);
  stats.remote_reads_total = reader_.counters().reads.load(std::memory_order_relaxed);
  stats.remote_read_bytes_total = reader_.counters().read_bytes.load(std::memory_order_relaxed);
  stats.repair_bytes_total = repair_bytes_.load(std::memory_order_relaxed);
  const Repair::Progress progress = repair_->progress();
  stats.repair_chunks_left = progress.chunks_left;
  stats.repair_phase = progress.phase;
  stats.knows_missing_copies = progress.has_looked;
  stats.missing_copies = progress.missing_copies + short_chunks_.load(std::memory_order_relaxed) + healing_->left();
  MutexLock lock(mutex_);
  stats.put_off_total = put_off_;
  stats.unacknowledged_bytes = unacknowledged_bytes_;
  return stats;
}

}  // namespace cairnfs::cluster
