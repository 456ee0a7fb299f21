// The parts of a ClusterChunkStore and how they hang together. Private to src/cluster.
//
// Each chunk that was put and is not known to have its copies has an Entry, which goes
//
//   asking -> confirming -> done            R nodes have it durably
//          -> waiting    -> asking          another node brings it
//          -> bringing   -> done            stored here and sent to others until R have it
//                        -> stuck           too few nodes can take it, or its bytes cannot be read: tried again when
//                                           that changes, and now and then
//
// One that was not put but covered (ClusterChunkStore::Cover) goes the same way, without its bytes: they are read,
// here or from another node, if they are to be sent.
//
// What is to be said to a node waits in its Peer's queues. Pump, which runs on work_, says it, many at once. Replies
// come on threads of gRPC's, and are handled on work_. Nothing here waits for the network but Sync.
#pragma once

#include <atomic>
#include <deque>
#include <future>
#include <map>
#include <set>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "base/clock.h"
#include "base/task_queue.h"
#include "base/thread_annotations.h"
#include "cluster/busy_pause.h"
#include "cluster/chunk_peer.h"
#include "cluster/cluster_chunk_store.h"
#include "cluster/confirmed_set.h"
#include "cluster/group_commit.h"
#include "cluster/healing.h"
#include "cluster/home.h"
#include "cluster/reachability.h"
#include "cluster/remote_reader.h"
#include "cluster/repair.h"
#include "cluster/shared_reads.h"
#include "cluster/waiting_reads.h"

namespace cairnfs::cluster {

class ClusterChunkStoreImpl final : public ClusterChunkStore, public ChunkPeer {
 public:
  ClusterChunkStoreImpl(store::LocalChunkStore& local, kv::KvEngine& engine, io::BufferPool& pool,
                        Membership& membership, const ClusterChunkOptions& options);
  ~ClusterChunkStoreImpl() override;

  // cluster_chunk_store.cc
  Result<store::PutResult> Put(const Digest& digest, std::span<const io::Slice> slices) override;
  Result<store::ChunkPin> Pin(const Digest& digest) override;
  std::vector<bool> Has(std::span<const Digest> digests) override;
  void Get(const Digest& digest, store::ChunkCallback done) override;
  void GetForReader(const Digest& digest, store::ChunkCallback done) override;
  bool KeepsPutSlices() override EXCLUDES_LOCK(mutex_) {
    MutexLock lock(mutex_);
    return unacknowledged_bytes_ > 0;
  }
  void EndWaits() override { waiting_reads_.Close(); }
  void Prefetch(std::span<const Digest> digests) override;
  Status AwaitHealing(const std::stop_token& stop) override { return healing_->Await(stop); }
  ClusterChunkStats ClusterStats() const override;
  void SetMinReplicas(unsigned min_replicas) override EXCLUDES_LOCK(mutex_);
  void SetRepairRate(uint64_t bytes_per_second_max) override;
  ChunkPeer& peer() override { return *this; }

  // syncing.cc
  Status Sync() override;
  Status SyncLocal() override;
  using ClusterChunkStore::SyncReadable;
  Result<Unreadable> SyncReadable(SyncScope scope, const SyncLimits& limits) override;
  std::vector<store::ChunkPin> Cover(std::span<const Sized> chunks) override EXCLUDES_LOCK(mutex_);
  void Owe(std::span<const Digest> chunks) override EXCLUDES_LOCK(mutex_);
  std::string WhatIsLacking() override EXCLUDES_LOCK(mutex_);
  size_t CountLacking(std::span<const Digest> chunks) override EXCLUDES_LOCK(mutex_);

  // serving.cc
  void Handle(PeerMethod method, const NodeId& caller, PeerMessage request, PeerServer::Respond respond) override;
  void StopHolding() override { home_.Close(); }
  PeerClient& client() override { return client_; }
  WireCounters& wire() override { return wire_; }

 protected:
  void Unpin(const Digest& digest) override;

 private:
  struct Entry {
    enum class State { kAsking, kWaiting, kConfirming, kBringing, kDone };
    enum class Local { kNone, kQueued, kStored, kRefused };
    Entry(const Digest& digest_in, size_t size_in) : digest(digest_in), size(size_in) {}
    const Digest digest;
    const size_t size;
    uint64_t sequence = 0;          // of the Put; 0: nobody's Sync waits for it (repair)
    std::vector<io::Slice> slices;  // empty: to be read from the local store
    State state = State::kAsking;
    Local local = Local::kNone;
    bool is_reserved = false;   // room in the local store
    bool only_covered = false;  // nobody has put it here: its bytes are read where they lie
    bool is_owed = false;       // whether it has a pin or not (ClusterChunkStore::Owe)
    NodeId home;                // that was asked
    Holders holders;            // other nodes that said that they have it durably
    Holders listed;             // the home's list of who has it, less those that denied it
    Holders confirming;         // asked whether they do
    Holders sending;            // it is on its way to these
    Holders told;               // the list of holders that those were told to whom it was sent
    bool must_tell = false;     // it has changed since
    bool hearsay = false;       // `holders` has some that a list names and that were not asked (repair)
    size_t spread_copies = 0;   // wanted, though there are enough: they are in too few failure domains (repair)
    unsigned corrupt_count = 0;
    std::optional<Error> failure;  // its bytes are in memory no more, and cannot be read
    Clock::time_point read_again_at{};
    Clock::time_point put_at = Clock::Now();
    Clock::time_point stuck_since{};  // for the first time
  };
  using EntryPtr = std::shared_ptr<Entry>;

  // To be sent: a chunk, or (entry null) only the news of who holds it.
  struct SendItem {
    EntryPtr entry;
    Digest digest;
    Holders holders;
  };
  struct Peer {
    std::deque<EntryPtr> asks, waits, confirms;
    std::deque<SendItem> sends;
    unsigned asks_running = 0, waits_running = 0, confirms_running = 0, sends_running = 0;
    size_t window = 0;  // chunk bytes sent and not acknowledged, or being read to be sent
    bool pump_posted = false;
    Clock::time_point quiet_until{};  // for chunks: it does not answer
    BusyPause sends_busy, asks_busy;
  };

  // asking.cc
  void Ask(const EntryPtr& entry, const View& view) REQUIRES_LOCK(mutex_);
  bool StartAsks(const NodeId& node, bool hold) EXCLUDES_LOCK(mutex_);
  void OnAsked(const NodeId& node, bool hold, const std::vector<EntryPtr>& entries,
               Result<std::vector<HasAnswer>> answers) EXCLUDES_LOCK(mutex_);
  void OnAnswer(const NodeId& node, const EntryPtr& entry, const HasAnswer& answer, bool is_here, const View& view)
      REQUIRES_LOCK(mutex_);
  void AskAgainLater(const NodeId& node, std::deque<EntryPtr>& queue, const std::vector<EntryPtr>& entries)
      REQUIRES_LOCK(mutex_);
  // Those that would get the chunk are asked whether they have it.
  void ConfirmTargets(const EntryPtr& entry, const View& view) REQUIRES_LOCK(mutex_);
  bool StartConfirms(const NodeId& node) EXCLUDES_LOCK(mutex_);
  void OnConfirmed(const NodeId& node, const std::vector<EntryPtr>& entries, Result<std::vector<bool>> bits)
      EXCLUDES_LOCK(mutex_);

  // bringing.cc
  void StartBringing(const EntryPtr& entry) REQUIRES_LOCK(mutex_);
  bool ChooseTargets(Entry& entry, const EntryPtr& pointer) REQUIRES_LOCK(mutex_);
  void PutLocally(const EntryPtr& entry) EXCLUDES_LOCK(mutex_);
  void NoteStuck(const EntryPtr& entry) REQUIRES_LOCK(mutex_);
  void Settle(const EntryPtr& entry) REQUIRES_LOCK(mutex_);
  void CoverBySync(const EntryPtr& entry) REQUIRES_LOCK(mutex_);
  void Complete(const EntryPtr& entry) REQUIRES_LOCK(mutex_);
  void Abandon(const EntryPtr& entry) REQUIRES_LOCK(mutex_);
  void Remove(const EntryPtr& entry) REQUIRES_LOCK(mutex_);
  static void AddHolder(Entry& entry, const NodeId& node);
  void EndRepair(const Digest& digest) REQUIRES_LOCK(mutex_);
  void TellHolders(const Entry& entry, const Holders& holders) REQUIRES_LOCK(mutex_);
  void DropLost(const std::vector<NodeId>& nodes) REQUIRES_LOCK(mutex_);
  bool IsListed(const Entry& entry) const;
  bool IsUp(const NodeId& node) const;
  size_t CopiesOf(const Entry& entry) const;
  size_t CopiesWanted(const Entry& entry) const { return std::max<size_t>(options_.copies, entry.spread_copies); }
  Holders HoldersToBe(const Entry& entry) const;  // those that have it, or are about to
  // The other nodes that should get it beside those: until there are as many copies as are wanted of every chunk, and
  // beyond that in new failure domains only.
  std::vector<NodeId> OtherTargets(const Entry& entry, const View& view) const;
  unsigned MinReplicas() const;  // 1 to `copies`
  size_t CopiesNeeded() REQUIRES_LOCK(mutex_);
  bool IsNeeded(const Entry& entry) REQUIRES_LOCK(mutex_);
  void Retry(const EntryPtr& entry) REQUIRES_LOCK(mutex_);
  void RetryAllStuck() EXCLUDES_LOCK(mutex_);
  // Of the ticker: all where other nodes take chunks than at the last call, else some, in turn.
  void RetryStuck() EXCLUDES_LOCK(mutex_);

  // sending.cc
  bool WritersGoFirst() REQUIRES_LOCK(mutex_);
  void SchedulePump(const NodeId& node) REQUIRES_LOCK(mutex_);
  void PumpAll() REQUIRES_LOCK(mutex_);
  void Pump(const NodeId& node) EXCLUDES_LOCK(mutex_);
  bool StartSend(const NodeId& node) EXCLUDES_LOCK(mutex_);
  void LoadBytes(const EntryPtr& entry, std::function<void(const Status&)> then) EXCLUDES_LOCK(mutex_);
  void LoadThenSend(const NodeId& node, const SendItem& item) EXCLUDES_LOCK(mutex_);
  bool LoadThenPut(const EntryPtr& entry) REQUIRES_LOCK(mutex_);
  void OnSent(const NodeId& node, std::vector<SendItem> items, size_t bytes, Result<std::vector<PutAnswer>> answers)
      EXCLUDES_LOCK(mutex_);
  void OnLoadFailed(const NodeId& node, const EntryPtr& entry, const Error& error) REQUIRES_LOCK(mutex_);
  static std::vector<io::Slice> KeepAlive(std::span<const io::Slice> slices);
  void TakeBytesAgain(Entry& entry, std::span<const io::Slice> slices) REQUIRES_LOCK(mutex_);
  void GiveUpTarget(const NodeId& node, SendItem item) REQUIRES_LOCK(mutex_);
  void RerouteQueue(const NodeId& node) REQUIRES_LOCK(mutex_);
  template <typename Reply>
  void Call(const NodeId& node, PeerMethod method, PeerMessage request, std::chrono::milliseconds timeout,
            std::optional<Reply> (*decode)(std::string_view), std::function<void(Result<Reply>)> done);

  // syncing.cc
  // `unreadable` null: a chunk that cannot be read back fails it.
  Status SyncUntil(SyncScope scope, Unreadable* unreadable, const SyncLimits& limits);
  struct SyncCall {
    bool local_only;
    Unreadable* unreadable;  // as that of SyncUntil
    const SyncLimits& limits;
    Clock::time_point begun_at, deadline, check_at;
    uint64_t last;  // sequence up to which entries are waited for
  };
  Status CheckSync(SyncCall& call) REQUIRES_LOCK(mutex_);  // whether to wait on
  bool LeavesOut(const SyncCall& call, const Entry& entry) REQUIRES_LOCK(mutex_);
  Status WaitUntilPlaced(SyncCall& call) REQUIRES_LOCK(mutex_);
  Status WaitForCopies(SyncCall& call) REQUIRES_LOCK(mutex_);
  bool IsUnreadable(const Entry& entry) REQUIRES_LOCK(mutex_);
  bool IsPlaced(const Entry& entry, bool local_only) const;
  void PutAllLocally(uint64_t last) REQUIRES_LOCK(mutex_);
  struct AwayNodes {
    std::string away, full;  // names, each after a space
  };
  static AwayNodes NodesThatTakeNothing(const View& view);
  std::string WhatHelps(const View& view, const AwayNodes& nodes) const;
  std::string DescribeShortage(const View& view, const AwayNodes& nodes) const REQUIRES_LOCK(mutex_);
  Error Shortage(std::string_view what, const View& view) REQUIRES_LOCK(mutex_);
  bool IsFullEverywhere(const View& view) const;

  // cluster_chunk_store.cc
  bool OthersMayTake();
  void PutAgain(const EntryPtr& entry, std::span<const io::Slice> slices) REQUIRES_LOCK(mutex_);
  std::future<Result<std::vector<bool>>> AskWhetherThere(const NodeId& node, const std::vector<Digest>& digests);
  bool LocallyPinned(const Digest& digest, store::ChunkPin pin) EXCLUDES_LOCK(pins_mutex_);
  bool IsPinned(const Digest& digest) EXCLUDES_LOCK(pins_mutex_);
  store::ChunkPin MakePin(const Digest& digest) EXCLUDES_LOCK(pins_mutex_);
  std::optional<store::ChunkData> FindPending(const Digest& digest) EXCLUDES_LOCK(mutex_);
  void GetOnce(const Digest& digest, RemoteReader::FetchCallback done);
  void GetLocalFirst(const Digest& digest, RemoteReader::FetchCallback done);
  bool IsReadElsewhere(const View& view, const Digest& digest) const;
  void OnLocalMiss(const Digest& digest, const Error& error, RemoteReader::FetchCallback done);
  bool Heal(const Digest& digest, const store::ChunkData& data);
  friend class Healing;
  // From another node. `ended` gets the bytes that were replaced, 0 when the copy is sound again, or nullopt when it
  // could not be done; on any thread, perhaps at once.
  void ReplaceDamaged(const Digest& digest, std::function<void(std::optional<size_t>)> ended) EXCLUDES_LOCK(mutex_);
  void OnViewChange(const ViewPtr& view) EXCLUDES_LOCK(mutex_);
  void Tick();
  struct ShortWatch {  // of the ticker
    uint64_t count = 0;
    Clock::time_point kicked_at{};
    std::chrono::seconds interval{2};
  };
  void KickRepair(ShortWatch& watch, Clock::time_point now);
  void LookWhetherFull();
  void DropSlicesUnderPressure() EXCLUDES_LOCK(mutex_);

  // serving.cc
  void HandleHas(const NodeId& caller, const PeerMessage& request, PeerServer::Respond respond);
  void PutQueued(const std::vector<Digest>& digests) EXCLUDES_LOCK(mutex_);
  void HandleConfirm(const PeerMessage& request, PeerServer::Respond respond);
  void HandlePut(const NodeId& caller, const PeerMessage& request, PeerServer::Respond respond);
  void HandleGet(const PeerMessage& request, PeerServer::Respond respond);
  void HandleNews(const PutItem& item);
  PutAnswer StoreReceived(const PutItem& item, const std::vector<io::Slice>& slices);
  struct Serving;
  void ReadWave(const std::shared_ptr<Serving>& serving);
  void AnswerGet(const std::shared_ptr<Serving>& serving);

  // repair.cc
  friend class Repair;
  // Makes the missing copies of a chunk that this node has; `holders` are the others that have it. `spread_copies`: so
  // many are wanted, if that is more than the cluster's number. False: it is being put, or is here no more.
  bool Replicate(const Digest& digest, const Holders& holders, size_t spread_copies, store::ChunkData data,
                 std::function<void()> ended) EXCLUDES_LOCK(mutex_);
  // Returns how much waits to be said to the node.
  size_t Tell(const NodeId& node, const Digest& digest, const Holders& holders) EXCLUDES_LOCK(mutex_);

  store::LocalChunkStore& local_;
  kv::KvEngine& engine_;
  io::BufferPool& pool_;
  Membership& membership_;
  const ClusterChunkOptions options_;
  const NodeId self_;
  std::atomic<unsigned> min_replicas_;  // 0: as many as `copies`
  WireCounters wire_;
  Reachability reachability_;
  GroupCommit commit_;
  HomeClaims home_;
  PeerClient client_;
  RemoteReader reader_;
  WaitingReads waiting_reads_;
  SharedReads shared_reads_;

  mutable Mutex mutex_;  // before pins_mutex_, commit_'s, home_'s and the queues'
  CondVar changed_;      // an entry came further, while sync_waiters_ > 0
  unsigned sync_waiters_ GUARDED_BY(mutex_) = 0;
  bool closing_ GUARDED_BY(mutex_) = false;   // nothing new is begun
  size_t loads_here_ GUARDED_BY(mutex_) = 0;  // of those of LoadThenPut
  size_t loads_ GUARDED_BY(mutex_) = 0;       // reads of the local store that end on work_
  std::unordered_map<Digest, EntryPtr, DigestHash> pending_ GUARDED_BY(mutex_);
  std::map<uint64_t, EntryPtr> by_sequence_ GUARDED_BY(mutex_);
  std::unordered_map<Digest, std::function<void()>, DigestHash> repairs_ GUARDED_BY(mutex_);
  std::set<uint64_t> in_memory_ GUARDED_BY(mutex_);  // sequences of those with slices
  std::set<EntryPtr> stuck_ GUARDED_BY(mutex_);
  EntryPtr retried_ GUARDED_BY(mutex_);  // the last of RetryStuck's turn
  uint64_t last_sequence_ GUARDED_BY(mutex_) = 0;
  uint64_t unacknowledged_bytes_ GUARDED_BY(mutex_) = 0;
  Clock::time_point last_put_at_ GUARDED_BY(mutex_){};
  std::optional<Clock::time_point> writers_first_since_ GUARDED_BY(mutex_);
  uint64_t put_off_ GUARDED_BY(mutex_) = 0;    // ClusterChunkStats::put_off_total
  uint64_t late_puts_ GUARDED_BY(mutex_) = 0;  // local puts and lists that came after their entry was placed
  std::unordered_map<NodeId, Peer, NodeIdHash> peers_ GUARDED_BY(mutex_);
  ConfirmedSet confirmed_ GUARDED_BY(mutex_);
  ViewPtr last_view_ GUARDED_BY(mutex_);
  std::optional<Error> failure_ GUARDED_BY(mutex_);  // the store refuses until it is reopened

  struct PinRecord {
    uint32_t count = 0;
    store::ChunkPin local;
  };
  Mutex pins_mutex_;
  std::unordered_map<Digest, PinRecord, DigestHash> pins_ GUARDED_BY(pins_mutex_);

  std::atomic<uint64_t> sent_bytes_{0}, received_bytes_{0}, short_chunks_{0};
  std::atomic<uint64_t> unspread_chunks_{0};  // in fewer failure domains than there might be, when it was tried last
  std::atomic<uint64_t> new_in_cluster_bytes_{0}, known_in_cluster_bytes_{0};
  std::atomic<uint64_t> repair_bytes_{0};
  std::atomic<bool> news_dropped_{false};  // of who holds a chunk, that a node should have been told
  bool is_full_ = false;                   // of the ticker's thread
  std::vector<NodeId> retried_with_;       // the same: nodes that took chunks at the last RetryStuck

  std::unique_ptr<Repair> repair_;
  std::unique_ptr<Healing> healing_;
  std::shared_ptr<void> view_subscription_;
  Mutex ticker_mutex_;
  CondVar ticker_wake_;
  bool stopping_ GUARDED_BY(ticker_mutex_) = false;
  std::thread ticker_;
  TaskQueue put_queue_;  // local puts, which may wait for the disk
  TaskQueue work_;       // ends first: its tasks use all of the above
};

}  // namespace cairnfs::cluster
