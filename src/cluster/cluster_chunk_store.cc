// The parts of a ClusterChunkStore, and what ties them together.
#include "cluster/cluster_chunk_store.h"

#include <pthread.h>

#include <algorithm>
#include <thread>
#include <unordered_map>

#include "base/log.h"
#include "cluster/chunk_server.h"
#include "cluster/repair.h"

namespace cairnfs::cluster {
namespace {

constexpr std::chrono::milliseconds kTickInterval{20};
constexpr std::chrono::milliseconds kSlowTickInterval{500};
constexpr std::chrono::milliseconds kAskAgainAfter{200};
constexpr uint64_t kFullBytes = 8 * kMiB;  // less room than this is none
constexpr size_t kUncommittedMax = 16 * 1024;

class ClusterChunkStoreImpl final : public ClusterChunkStore {
 public:
  ClusterChunkStoreImpl(store::LocalChunkStore& local, kv::KvEngine& engine, io::BufferPool& pool,
                        Membership& membership, const ClusterChunkOptions& options);
  ~ClusterChunkStoreImpl() override;

  Result<store::PutResult> Put(const Digest& digest, std::span<const io::Slice> slices,
                               const store::NewBytes& new_bytes) override;
  Result<store::ChunkPin> Pin(const Digest& digest, size_t size) override;
  Result<std::vector<bool>> Has(const Context& context, std::span<const Digest> digests) override;
  void Get(const Digest& digest, store::ChunkCallback done) override { reads_.Get(digest, std::move(done)); }
  void GetFromDisk(const Digest& digest, store::ChunkCallback done) override {
    reads_.GetFromDisk(digest, std::move(done));
  }
  void GetForReader(const Digest& digest, store::ChunkCallback done) override {
    reads_.GetForReader(digest, std::move(done));
  }
  bool KeepsPutSlices() override { return replicator_.HasAwaited(); }
  void EndWaits() override { reads_.EndWaits(); }
  void Prefetch(std::span<const Digest> digests) override { reads_.Prefetch(digests); }
  Status Sync() override;
  Result<Unreadable> SyncReadable(const Context& context, SyncScope scope) override {
    return replicator_.Sync(context, scope);
  }
  Result<Unreadable> SyncOnly(const Context& context, SyncScope scope, std::span<const Digest> chunks) override {
    return replicator_.Sync(context, scope, chunks);
  }
  std::vector<store::ChunkPin> Cover(std::span<const Sized> chunks) override;
  void NoteReferenced(std::span<const Digest> chunks) override { replicator_.NoteReferenced(chunks); }
  std::string DescribeShortage() override { return replicator_.DescribeShortage(); }
  bool LacksNodes() override { return replicator_.LacksNodes(); }
  size_t CountUnderReplicated(std::span<const Digest> chunks) override {
    const std::vector<bool> is_awaited = replicator_.Knows(chunks, Replicator::Known::kAwaited);
    return static_cast<size_t>(std::count(is_awaited.begin(), is_awaited.end(), true));
  }
  Status AwaitHealing(const Context& context) override { return reads_.AwaitHealing(context); }
  void BeginEpoch() override { replicator_.BeginEpoch(); }
  Status AwaitSafe(const Context& context) override { return replicator_.AwaitSafe(context); }
  void HoldRepair(bool hold) override { repair_->Hold(hold); }
  Status ForgetHolders(const Context& context, const store::LiveTest& live) override;
  ClusterChunkStats ClusterStats() const override;
  void SetMinReplicas(unsigned min_replicas) override { replicator_.SetMinReplicas(min_replicas); }
  void SetRepairRate(uint64_t bytes_per_second_max) override;
  ChunkServer& peer() override { return server_; }

 protected:
  void Unpin(const Digest& digest) override { pins_.Release(digest); }

 private:
  void OnViewChange(const ViewPtr& view) EXCLUDES_LOCK(view_mutex_);
  void RunTicker(const Context& context);
  Result<std::vector<bool>> AskWhileUp(const Context& context, const NodeId& node, const std::vector<Digest>& digests);
  void LookWhetherFull();
  void LookWhetherEmpty();

  store::LocalChunkStore& local_;
  kv::KvEngine& engine_;
  Membership& membership_;
  const PeerTimeouts timeouts_;
  const std::chrono::milliseconds read_wait_max_;
  const NodeId self_;
  WireCounters wire_;
  RepairNeeds needs_;
  ChunkPins pins_;
  Reachability reachability_;
  GroupCommit commit_;
  HomeClaims home_;
  PeerClient client_;
  RemoteReader remote_;
  PeerCaller caller_;
  ChunkReads reads_;
  Replicator replicator_;
  ChunkServer server_;
  std::unique_ptr<Repair> repair_;

  Mutex view_mutex_;
  ViewPtr last_view_ GUARDED_BY(view_mutex_);
  std::shared_ptr<void> view_subscription_;
  bool is_full_ = false;      // of the ticker
  uint64_t empty_drain_ = 0;  // the same: the drain under which this node had nothing at the last look
  std::stop_source stop_;
  std::thread ticker_;
  TaskQueue stores_{"cairn-put", 2, TaskQueue::Priority::kBackground};  // these may wait for this node's disk
  TaskQueue work_{"cairn-peers", 2, TaskQueue::Priority::kBackground};  // ends first: its tasks use all of the above
};

ClusterChunkStoreImpl::ClusterChunkStoreImpl(store::LocalChunkStore& local, kv::KvEngine& engine, io::BufferPool& pool,
                                             Membership& membership, const ClusterChunkOptions& options)
    : local_(local),
      engine_(engine),
      membership_(membership),
      timeouts_(options.timeouts),
      read_wait_max_(options.read_wait_max),
      self_(membership.self()),
      reachability_(membership),
      commit_(local, engine),
      home_(
          commit_, membership, [this](std::function<void()> task) { work_.Post(std::move(task)); },
          options.claim_time_max),
      client_(membership, options.connections_per_peer, wire_, options.timeouts.connect, options.tls),
      remote_({pool, client_, membership, reachability_, commit_, local.cache()}, options.timeouts.silent),
      caller_(client_, work_),
      reads_({local, remote_, commit_, reachability_, self_, stores_, work_,
              [this](const Digest& digest) { return replicator_.FindBytes(digest); },
              [this](const Digest& digest) { replicator_.ForgetConfirmed(digest); }},
             {options.read_wait_max, options.shared_reads_last, options.repair_bytes_per_second_max}),
      replicator_(
          {local, pool, membership, reachability_, commit_, home_, caller_, reads_, pins_, needs_, stores_, work_},
          options),
      server_({local, commit_, home_, replicator_, reads_, needs_, client_, wire_, work_, membership, self_,
               options.copies}),
      last_view_(membership.view()) {
  // Its thread may use the queues, which are made last.
  repair_ =
      std::make_unique<Repair>(Repair::Parts{{local, commit_, membership, reachability_, caller_, reads_, replicator_,
                                              options.copies, options.timeouts.has, options.stored_bytes},
                                             engine,
                                             needs_},
                               options.repair_bytes_per_second_max);
  view_subscription_ = membership.OnChange([this](const ViewPtr& view) { OnViewChange(view); });
  ticker_ = std::thread([this] { RunTicker(Context(stop_.get_token())); });
  local_.SetDamageHandler([this](const Digest& digest) { reads_.NoteDamaged(digest); });
}

// What waits for copies stays short of them. Everything that is under way ends before the parts that it uses.
ClusterChunkStoreImpl::~ClusterChunkStoreImpl() {
  local_.SetDamageHandler({});
  view_subscription_.reset();
  replicator_.Close();
  stop_.request_stop();
  reads_.Close();
  client_.Close();
  home_.Close();
  ticker_.join();
  repair_->Stop();
  reads_.AwaitEnd();
  client_.AwaitCalls();
  replicator_.AwaitLoads();
}

// The pin is made first: what has none may be given up at any moment.
Result<store::PutResult> ClusterChunkStoreImpl::Put(const Digest& digest, std::span<const io::Slice> slices,
                                                    const store::NewBytes& new_bytes) {
  size_t size = 0;
  for (const io::Slice& slice : slices) size += slice.size;
  store::ChunkPin pin = pins_.Make(this, digest, size);
  CAIRNFS_ASSIGN_OR_RETURN(const bool is_new, replicator_.Put(digest, slices, new_bytes));
  return store::PutResult{std::move(pin), is_new};
}

std::vector<store::ChunkPin> ClusterChunkStoreImpl::Cover(std::span<const Sized> chunks) {
  std::vector<store::ChunkPin> pins;
  for (const Sized& chunk : chunks) {
    store::ChunkPin pin = pins_.Make(this, chunk.digest, chunk.size);
    if (replicator_.Cover(chunk)) pins.push_back(std::move(pin));
  }
  return pins;
}

Result<store::ChunkPin> ClusterChunkStoreImpl::Pin(const Digest& digest, size_t size) {
  store::ChunkPin pin = pins_.Make(this, digest, size);
  if (size > 0) static_cast<void>(replicator_.Cover({digest, size}));
  auto local = local_.Pin(digest, size);
  if (local.ok()) {
    pins_.KeepLocal(digest, *std::move(local));
  } else if (local.error().code != ErrorCode::kNotFound) {
    return local.error();
  }
  return pin;
}

// Who is up is for the membership to say: a node that did not answer a moment ago may be the only one that has a chunk.
Result<std::vector<bool>> ClusterChunkStoreImpl::Has(const Context& context, std::span<const Digest> digests) {
  std::vector<bool> has = local_.Has(digests);
  const std::vector<bool> is_known = replicator_.Knows(digests, Replicator::Known::kPendingOrConfirmed);
  std::unordered_map<NodeId, std::vector<size_t>, NodeIdHash> questions;
  const ViewPtr view = membership_.view();
  for (size_t i = 0; i < digests.size(); ++i) {
    has[i] = has[i] || is_known[i];
    if (has[i]) continue;
    for (const NodeInfo& node : view->nodes) {
      if (node.id != self_ && node.state == NodeState::kUp) questions[node.id].push_back(i);
    }
  }
  for (auto& [node, indexes] : questions) {
    std::erase_if(indexes, [&](size_t i) { return has[i]; });
    for (size_t begin = 0; begin < indexes.size(); begin += kDigestsPerMessageMax) {
      const size_t end = std::min(indexes.size(), begin + kDigestsPerMessageMax);
      std::vector<Digest> asked;
      for (size_t k = begin; k < end; ++k) asked.push_back(digests[indexes[k]]);
      CAIRNFS_ASSIGN_OR_RETURN(const std::vector<bool> bits, AskWhileUp(context, node, asked));
      for (size_t k = begin; k < end; ++k) has[indexes[k]] = has[indexes[k]] || bits[k - begin];
    }
  }
  return has;
}

// A node that goes down meanwhile has none of them.
Result<std::vector<bool>> ClusterChunkStoreImpl::AskWhileUp(const Context& context, const NodeId& node,
                                                            const std::vector<Digest>& digests) {
  const auto give_up_at = Clock::Now() + read_wait_max_;
  for (;;) {
    const auto answer = caller_.Confirm(node, digests, timeouts_.has);
    answer->Wait({});
    const auto bits = answer->Take();
    if (bits.ok() && bits->size() == digests.size()) return *bits;
    const ViewPtr view = membership_.view();
    const NodeInfo* info = view->Find(node);
    if (info == nullptr || info->state != NodeState::kUp) return std::vector<bool>(digests.size());
    if (Clock::Now() >= give_up_at) {
      return MakeError(ErrorCode::kUnavailable, "which chunks node " + info->name + " has is not known: " +
                                                    (bits.ok() ? "its answer is too short" : bits.error().message));
    }
    if (!context.Sleep(kAskAgainAfter)) return MakeError(ErrorCode::kInterrupted, "the question was stopped");
  }
}

Status ClusterChunkStoreImpl::Sync() {
  CAIRNFS_ASSIGN_OR_RETURN(const Unreadable unreadable, replicator_.Sync({}, SyncScope::kCopies));
  return unreadable.empty() ? Status() : unreadable.begin()->second;
}

// Those of chunks that lie here go with their chunk.
Status ClusterChunkStoreImpl::ForgetHolders(const Context& context, const store::LiveTest& live) {
  constexpr size_t kListsPerRead = 1024;
  std::optional<Digest> after;
  for (;;) {
    if (context.Expired()) return MakeError(ErrorCode::kInterrupted, "the collection was stopped");
    CAIRNFS_ASSIGN_OR_RETURN(const std::vector<HolderEntry> entries, ScanHolders(engine_, after, kListsPerRead));
    if (entries.empty()) return {};
    after = entries.back().digest;
    std::vector<Digest> dead;
    for (const HolderEntry& entry : entries) {
      if (!live(entry.digest)) dead.push_back(entry.digest);
    }
    CAIRNFS_RETURN_IF_ERROR(commit_.ForgetHolders(dead));
  }
}

void ClusterChunkStoreImpl::SetRepairRate(uint64_t bytes_per_second_max) {
  repair_->SetRate(bytes_per_second_max);
  reads_.SetRepairRate(bytes_per_second_max);
}

void ClusterChunkStoreImpl::OnViewChange(const ViewPtr& view) {
  reachability_.Reset();
  ViewPtr before;
  {
    MutexLock lock(view_mutex_);
    before = std::exchange(last_view_, view);
  }
  const NodeChanges changes = NodeChanges::Between(*before, *view);
  for (const NodeId& node : changes.down) client_.EndCalls(node);
  home_.Tick();
  replicator_.OnNodesChanged(changes);
  reads_.OnNodesChanged(changes);
  // A node that goes for good moves homes, and one that comes has missed what it is the home of; one that has room
  // again may take copies that are missing.
  const bool any_short = needs_.count() + repair_->progress().missing_copies > 0;
  const bool any_news = changes.any_out || changes.any_up || changes.any_weight;
  if (any_news || (changes.any_room && any_short)) repair_->Kick(Repair::Depth::kHolders);
}

void ClusterChunkStoreImpl::LookWhetherFull() {
  const uint64_t bytes = is_full_ ? 2 * kFullBytes : kFullBytes;
  const bool has_room = local_.TryReserve(bytes);
  if (has_room) local_.ReleaseReservation(bytes);
  if (is_full_ == !has_room) return;
  is_full_ = !has_room;
  spdlog::info("this node {}", is_full_ ? "is full, and takes no more chunks" : "has room again");
  membership_.SetFull(is_full_);
}

// Once others see the node drained it gets nothing any more: those that do not yet are refused.
void ClusterChunkStoreImpl::LookWhetherEmpty() {
  const ViewPtr view = membership_.view();
  const NodeInfo* self = view->Find(self_);
  const uint64_t drain = self != nullptr ? self->drain : 0;
  ClusterChunkStats stats{};
  replicator_.AddTo(stats);
  const bool is_empty = drain != 0 && stats.pending_chunks == 0 && local_.Stats().chunk_count == 0;
  // What was under way when the others learnt of it has ended by the next look.
  const bool was_empty = std::exchange(empty_drain_, is_empty ? drain : 0) != 0;
  if (is_empty == was_empty) membership_.SetEmpty(is_empty, drain);
}

void ClusterChunkStoreImpl::RunTicker(const Context& context) {
  pthread_setname_np(pthread_self(), "cairn-tick");
  auto slow_at = Clock::Now();
  while (context.Sleep(kTickInterval)) {
    home_.Tick();
    reads_.Tick();
    replicator_.Tick();
    const auto now = Clock::Now();
    if (now < slow_at) continue;
    slow_at = now + kSlowTickInterval;
    LookWhetherFull();
    LookWhetherEmpty();
    repair_->Tick(now);
    if (commit_.uncommitted_count() > kUncommittedMax) commit_.Commit([](const Status&) {});
  }
}

ClusterChunkStats ClusterChunkStoreImpl::ClusterStats() const {
  ClusterChunkStats stats{};
  const RemoteReader::Counters& reads = remote_.counters();
  stats.remote_reads_total = reads.reads.load(std::memory_order_relaxed);
  stats.remote_read_bytes_total = reads.read_bytes.load(std::memory_order_relaxed);
  stats.sent_bytes_total = server_.sent_bytes();
  stats.received_bytes_total = server_.received_bytes() + stats.remote_read_bytes_total;
  stats.wire_sent_bytes_total = wire_.sent_bytes.load(std::memory_order_relaxed);
  stats.wire_received_bytes_total = wire_.received_bytes.load(std::memory_order_relaxed);
  replicator_.AddTo(stats);
  const Repair::Progress progress = repair_->progress();
  stats.repair_bytes_total = progress.bytes_total;
  stats.repair_chunks_left = progress.chunks_left;
  stats.repair_phase = progress.phase;
  stats.knows_missing_copies = progress.has_looked;
  stats.missing_copies = progress.missing_copies + needs_.under_replicated.load() + reads_.damaged_count();
  return stats;
}

}  // namespace

std::unique_ptr<ClusterChunkStore> ClusterChunkStore::Create(store::LocalChunkStore& local, kv::KvEngine& engine,
                                                             io::BufferPool& pool, Membership& membership,
                                                             const ClusterChunkOptions& options) {
  return std::make_unique<ClusterChunkStoreImpl>(local, engine, pool, membership, options);
}

}  // namespace cairnfs::cluster
