#include "cluster/replicator.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "base/failpoint.h"
#include "base/log.h"

namespace cairnfs::cluster {
namespace {

// Leaves out what a new epoch is for: what was confirmed before counts, and nobody is asked anew.
Failpoint skip_epoch("cluster.skip_epoch", Failpoint::Kind::kSkippable);

constexpr std::chrono::milliseconds kRetryInterval{200};
constexpr size_t kRetriedPerTurn = 1024;
constexpr std::chrono::seconds kBytesKeptFor{2};
constexpr size_t kLoadsToStoreMax = 32;

// 1 to `copies`; 0: as many.
unsigned Clamped(unsigned min_replicas, unsigned copies) {
  return std::max(1U, min_replicas == 0 ? copies : std::min(min_replicas, copies));
}

// The caller's memory may go when Put returns, unless a slice owns it.
std::vector<io::Slice> KeepAlive(std::span<const io::Slice> slices) {
  std::vector<io::Slice> kept;
  kept.reserve(slices.size());
  for (const io::Slice& slice : slices) {
    if (slice.size == 0) continue;
    if (slice.owner || slice.memory) {
      kept.push_back(slice);
      continue;
    }
    std::shared_ptr<std::byte[]> copy(new std::byte[slice.size]);
    std::memcpy(copy.get(), slice.data, slice.size);
    const std::byte* data = copy.get();
    kept.push_back(io::Slice{{}, data, slice.size, std::move(copy)});
  }
  return kept;
}

}  // namespace

Replicator::Replicator(const Parts& parts, const ClusterChunkOptions& options)
    : parts_(parts),
      options_(options),
      self_(parts.membership.self()),
      min_replicas_(Clamped(options.min_replicas, options.copies)),
      queues_(options.window_bytes_per_peer),
      writers_(options.writer_pause, options.writers_first_max) {}

void Replicator::Close() {
  MutexLock lock(mutex_);
  closing_ = true;
}

void Replicator::AwaitLoads() {
  MutexLock lock(mutex_);
  assert(closing_);
  while (loads_ > 0) changed_.Wait(mutex_);
}

// Made anew with the lock held: a session that is lost later is told of to OnNodesChanged afterwards, which drops what
// was counted before.
Situation Replicator::Now() {
  return {.self = self_,
          .members = parts_.membership.view(),
          .reachable = parts_.reachability.view(),
          .copies = options_.copies,
          .min_replicas = min_replicas_,
          .now = Clock::Now(),
          .store_fails = failure_.has_value(),
          .may_load = loads_to_store_ < kLoadsToStoreMax,
          .epoch = epoch_};
}

void Replicator::SetMinReplicas(unsigned min_replicas) {
  min_replicas_ = Clamped(min_replicas, options_.copies);
  RetryUnderReplicated(Turn::kAll);
}

Result<bool> Replicator::Put(const Digest& digest, std::span<const io::Slice> slices,
                             const store::NewBytes& new_bytes) {
  size_t size = 0;
  for (const io::Slice& slice : slices) size += slice.size;
  if (size == 0 || size > kPayloadBytesFull) {
    return MakeError(ErrorCode::kInvalidArgument, "a chunk of " + std::to_string(size) + " bytes; 1 to " +
                                                      std::to_string(kPayloadBytesFull) + " are possible");
  }
  {
    MutexLock lock(mutex_);
    if (failure_) return *failure_;
    if (confirmed_.Contains(digest)) {
      known_bytes_.fetch_add(size, std::memory_order_relaxed);
      return false;
    }
    if (const ChunkPtr chunk = pending_.Find(digest)) {
      PutAgain(chunk, slices);
      return false;
    }
  }
  // Room for it is reserved until it lies here, or is known not to have to.
  const bool has_room = parts_.local.TryReserve(size);
  if (!has_room) {
    const ViewPtr view = parts_.reachability.view();
    const auto others = std::count_if(view->nodes.begin(), view->nodes.end(),
                                      [&](const NodeInfo& node) { return node.id != self_ && node.takes_chunks(); });
    if (static_cast<size_t>(others) < min_replicas_) {
      return MakeError(ErrorCode::kNoSpace, "no space on this node, nor on enough others");
    }
    parts_.reachability.NoteFull(self_);
  }
  const auto now = Clock::Now();
  auto chunk = std::make_shared<ChunkCopies>(digest, size, ChunkCopies::Put{KeepAlive(slices), has_room, now});
  MutexLock lock(mutex_);
  if (const ChunkPtr other = pending_.Find(digest)) {
    if (has_room) parts_.local.ReleaseReservation(size);
    PutAgain(other, slices);
    return false;
  }
  pending_.Add(chunk);
  if (new_bytes != nullptr) counted_[digest] = new_bytes;
  pending_.AwaitBySync(chunk);
  writers_.NotePut(now);
  Apply(chunk, chunk->Begin(Now()));
  return true;
}

// The first Put of it counts once it has its copies. A repair of it may be under way, which no Sync waits for.
void Replicator::PutAgain(const ChunkPtr& chunk, std::span<const io::Slice> slices) {
  if (chunk->WasPut()) known_bytes_.fetch_add(chunk->size(), std::memory_order_relaxed);
  pending_.AwaitBySync(chunk);
  if (!chunk->NeedsBytes()) return;
  chunk->OnPutAgain(KeepAlive(slices));
  pending_.Update(chunk);
}

bool Replicator::Cover(const ClusterChunkStore::Sized& sized) {
  MutexLock lock(mutex_);
  if (confirmed_.Contains(sized.digest)) return false;
  ChunkPtr chunk = pending_.Find(sized.digest);
  const bool is_new = chunk == nullptr;
  if (is_new) {
    chunk = std::make_shared<ChunkCopies>(sized.digest, sized.size, Clock::Now());
    pending_.Add(chunk);
  }
  pending_.AwaitBySync(chunk);
  if (is_new) Apply(chunk, chunk->Begin(Now()));
  return true;
}

void Replicator::NoteReferenced(std::span<const Digest> chunks) {
  for (const Digest& digest : chunks) {
    MutexLock lock(mutex_);  // let go between them, for there may be thousands
    if (const ChunkPtr chunk = pending_.Find(digest)) chunk->OnReferenced();
  }
}

bool Replicator::Repair(const Digest& digest, ChunkCopies::Repair repair, size_t size, std::function<void()> ended) {
  auto chunk = std::make_shared<ChunkCopies>(digest, size, self_, std::move(repair));
  MutexLock lock(mutex_);
  if (pending_.Find(digest) != nullptr) return false;
  pending_.Add(chunk);
  confirmed_.Erase(digest);
  repairs_.emplace(digest, std::move(ended));
  Apply(chunk, chunk->Begin(Now()));
  return true;
}

size_t Replicator::Tell(const NodeId& node, const Digest& digest, const Holders& holders) {
  MutexLock lock(mutex_);
  PumpSoon(node);
  return queues_.Tell(node, digest, holders);
}

std::optional<store::ChunkData> Replicator::FindBytes(const Digest& digest) {
  MutexLock lock(mutex_);
  const ChunkPtr chunk = pending_.Find(digest);
  if (chunk == nullptr || chunk->bytes().empty()) return std::nullopt;
  return store::ChunkData{chunk->bytes(), chunk->size()};
}

std::vector<Replicator::Storing> Replicator::FindStoring(const std::vector<Digest>& digests) {
  std::vector<Storing> found;
  MutexLock lock(mutex_);
  for (const Digest& digest : digests) {
    const ChunkPtr chunk = pending_.Find(digest);
    // Its bytes may be wrong, or not in memory any more.
    const bool is_stored = chunk && chunk->local() == ChunkCopies::Local::kBeingStored && !chunk->bytes().empty();
    if (is_stored) found.push_back({digest, chunk->bytes(), chunk->announced()});
  }
  return found;
}

std::vector<bool> Replicator::Knows(std::span<const Digest> digests, Known known) {
  std::vector<bool> is_known(digests.size());
  for (size_t i = 0; i < digests.size(); ++i) {
    MutexLock lock(mutex_);  // let go between them, for there may be thousands
    const ChunkPtr chunk = pending_.Find(digests[i]);
    if (known == Known::kAwaited) is_known[i] = chunk && chunk->sequence() != 0;
    if (known == Known::kPending) is_known[i] = chunk != nullptr;
    if (known == Known::kPendingOrConfirmed) is_known[i] = chunk || confirmed_.Contains(digests[i]);
  }
  return is_known;
}

void Replicator::ForgetConfirmed(const Digest& digest) {
  MutexLock lock(mutex_);
  confirmed_.Erase(digest);
}

std::string Replicator::DescribeShortage() {
  MutexLock lock(mutex_);
  return pending_.awaited().empty() ? "" : Shortage{Now(), pending_.awaited().size()}.Describe();
}

// What cannot be read back holds up no round.
bool Replicator::LacksNodes() {
  MutexLock lock(mutex_);
  const auto& chunks = pending_.under_replicated();
  return std::any_of(chunks.begin(), chunks.end(),
                     [](const ChunkPtr& chunk) { return chunk->sequence() != 0 && !chunk->failure(); });
}

bool Replicator::HasAwaited() {
  MutexLock lock(mutex_);
  return pending_.awaited_bytes() > 0;
}

void Replicator::AddTo(ClusterChunkStats& stats) const {
  stats.sent_bytes_total += sent_bytes_.load(std::memory_order_relaxed);
  stats.new_in_cluster_bytes_total = new_bytes_.load(std::memory_order_relaxed);
  stats.known_in_cluster_bytes_total = known_bytes_.load(std::memory_order_relaxed);
  MutexLock lock(mutex_);
  stats.put_off_total = queues_.put_off();
  stats.unacknowledged_bytes = pending_.awaited_bytes();
  stats.pending_chunks = pending_.all().size();
}

void Replicator::Apply(const ChunkPtr& chunk, const ChunkCopies::Actions& actions) {
  const Digest& digest = chunk->digest();
  if (pending_.Find(digest) != chunk) return;  // it is done since an earlier event
  auto ask = [&](const NodeId& node, Question question) {
    mutex_.AssertHeld();
    queues_.Ask(node, question, chunk);
    PumpSoon(node);
  };
  if (actions.ask) ask(*actions.ask, Question::kHas);
  if (actions.ask_again) ask(*actions.ask_again, Question::kHeldHas);
  for (const NodeId& node : actions.confirm) ask(node, Question::kConfirm);
  for (const NodeId& node : actions.send) {
    queues_.Send(node, chunk);
    PumpSoon(node);
  }
  for (const NodeId& node : actions.tell) {
    queues_.Tell(node, digest, actions.holders);
    PumpSoon(node);
  }
  if (actions.list_holders) parts_.commit.SetHolders(digest, actions.holders);
  if (actions.list_holders && actions.holders.size() > options_.copies) parts_.needs.surplus = true;
  if (actions.end_claim) parts_.home.EndClaim(digest);
  if (actions.commit) ++late_commits_;
  if (actions.store) StoreSoon(chunk);
  if (actions.load) LoadThenStore(chunk);
  pending_.Update(chunk);
  if (chunk->is_done()) Finish(*chunk);
  // Last: what ended short of copies is counted by then.
  if (const auto repair = repairs_.find(digest); repair != repairs_.end() && (actions.end_repair || chunk->is_done())) {
    parts_.work.Post(std::move(repair->second));
    repairs_.erase(repair);
  }
  const bool is_news = chunk->is_done() || chunk->is_under_replicated() || actions.commit;
  if (is_news && sync_waiters_ > 0) changed_.NotifyAll();
}

void Replicator::Finish(ChunkCopies& chunk) {
  using Outcome = ChunkCopies::Outcome;
  if (chunk.TakeReservation()) parts_.local.ReleaseReservation(chunk.size());
  const auto& [outcome, was_new, has_copies] = chunk.end();
  const bool is_abandoned = outcome == Outcome::kAbandoned;
  if (is_abandoned && chunk.failure() && !chunk.is_covered()) spdlog::error("{}", chunk.failure()->message);
  if (!is_abandoned && chunk.WasPut()) {
    (was_new ? new_bytes_ : known_bytes_).fetch_add(chunk.size(), std::memory_order_relaxed);
  }
  if (const auto counted = counted_.extract(chunk.digest()); counted && was_new && !is_abandoned) {
    counted.mapped()(chunk.size());
  }
  const bool is_short = outcome == Outcome::kUnderReplicated || (is_abandoned && has_copies);
  if (is_short) parts_.needs.under_replicated.fetch_add(1);
  if (outcome == Outcome::kInFewDomains) parts_.needs.in_few_domains.fetch_add(1);
  if (outcome == Outcome::kReplicated) confirmed_.Insert(chunk.digest());
}

void Replicator::OnNodesChanged(const NodeChanges& changes) {
  {
    MutexLock lock(mutex_);
    if (closing_) return;
    if (!changes.sessions_lost.empty() || changes.any_out) confirmed_.Clear();
    for (const NodeId& node : changes.down) GiveUpUnsent(node);
    if (!changes.sessions_lost.empty()) {
      std::vector<ChunkPtr> chunks;  // an event may take one out
      for (const auto& [digest, chunk] : pending_.all()) chunks.push_back(chunk);
      Situation situation = Now();
      for (const ChunkPtr& chunk : chunks) {
        Apply(chunk, chunk->OnSessionsLost(situation, changes.sessions_lost));
        situation.may_load = loads_to_store_ < kLoadsToStoreMax;
      }
    }
  }
  RetryUnderReplicated(Turn::kAll);
}

// What was confirmed is forgotten before the pins are looked at: whoever pins a chunk later asks for it anew.
void Replicator::BeginEpoch() {
  if (skip_epoch.PassOrSkip()) return;
  {
    MutexLock lock(mutex_);
    ++epoch_;
    confirmed_.Clear();
    std::vector<ChunkPtr> chunks;  // an event may take one out
    for (const auto& [digest, chunk] : pending_.all()) chunks.push_back(chunk);
    for (const ChunkPtr& chunk : chunks) Apply(chunk, chunk->OnEpoch(Now()));
  }
  const std::vector<ChunkPins::Pinned> pinned = parts_.pins.ToBeNamed();
  for (const auto& [digest, size] : pinned) static_cast<void>(Cover({digest, size}));
  std::vector<ChunkPtr> chunks;
  std::vector<Digest> digests;
  {
    MutexLock lock(mutex_);
    for (const auto& [digest, chunk] : pending_.all()) {
      chunks.push_back(chunk);
      digests.push_back(digest);
    }
    made_safe_ = std::move(chunks);
  }
  // This node's own copies count: it records that it was asked for them.
  static_cast<void>(parts_.local.Has(digests));
}

Status Replicator::AwaitSafe(const Context& context) {
  MutexLock lock(mutex_);
  ++sync_waiters_;
  PumpReady();
  const auto are_safe = [this] {
    mutex_.AssertHeld();
    std::erase_if(made_safe_, [](const ChunkPtr& chunk) { return chunk->is_safe(); });
    return made_safe_.empty() || closing_;
  };
  // Not each event that makes one safe is told.
  while (!are_safe() && !context.Expired()) {
    static_cast<void>(context.WithTimeout(kRetryInterval).Wait(mutex_, changed_, are_safe));
  }
  --sync_waiters_;
  if (made_safe_.empty()) return {};
  return MakeError(ErrorCode::kUnavailable, std::to_string(made_safe_.size()) +
                                                " chunks that are being saved are not known to lie on any node yet");
}

// There may be hundreds of thousands, and others want the lock meanwhile: so many at a time. kSome: one such turn.
void Replicator::RetryUnderReplicated(Turn turn) {
  ChunkPtr last = turn == Turn::kSome ? retried_ : nullptr;
  do {
    MutexLock lock(mutex_);
    if (closing_) return;
    for (size_t i = 0; i < kRetriedPerTurn; ++i) {
      last = pending_.NextUnderReplicated(last);
      if (last == nullptr) break;
      Apply(last, last->Retry(Now(), parts_.pins.IsPinned(last->digest())));
    }
  } while (turn == Turn::kAll && last != nullptr);
  if (turn == Turn::kSome) retried_ = last;
}

// Beside the nodes there are other reasons to try again, which take longer: time to load once more, room, pins that are
// gone.
void Replicator::Tick() {
  const auto now = Clock::Now();
  if (parts_.pool.UnderPressure()) {
    MutexLock lock(mutex_);
    pending_.DropBytes(now, kBytesKeptFor);
  }
  if (now >= retry_at_) {
    retry_at_ = now + kRetryInterval;
    std::vector<NodeId> taking;
    const ViewPtr view = parts_.reachability.view();
    for (const NodeInfo& node : view->nodes) {
      if (node.takes_chunks()) taking.push_back(node.id);
    }
    const bool are_others = std::exchange(retried_with_, taking) != taking;
    RetryUnderReplicated(are_others ? Turn::kAll : Turn::kSome);
  }
  MutexLock lock(mutex_);
  if (hold_ && now >= hold_->until) StoreOthers();
  if (queues_.TakeUpdatesDropped()) parts_.needs.updates_dropped = true;
  PumpReady();
}

}  // namespace cairnfs::cluster
