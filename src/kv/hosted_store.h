// HostedStore: the SharedKvStore of the process that owns the engine.
//
// Commits queue up (group commit). The thread at the head of the queue takes all that wait, evaluates them in order,
// writes them as one synced batch of the engine and answers them; meanwhile the next ones queue up. An engine shows a
// batch only once it is durable, and reads go to the engine alone. So a crash takes nothing back that anybody has read.
//
// The layout is LocalKvStore's, with leases and slots beside it (docs/formats/kv.md). It must not be opened as a
// LocalKvStore while leases are held: those would not end.
#pragma once

#include <deque>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/thread_annotations.h"
#include "kv/engine.h"
#include "kv/history.h"
#include "kv/lease_table.h"
#include "kv/name_room.h"
#include "kv/openings.h"
#include "kv/shared_store.h"
#include "kv/slots.h"
#include "kv/store_log.h"

namespace cairnfs::kv {

class HostedBatch;

struct HostedStoreOptions {
  size_t history_bytes_max = 64 << 20;  // of changes that watches may still ask for
  // Transactions that make names need a NameRoom, and are answered kUnavailable while there is none.
  bool keeps_room = false;
  StoreLog* log = nullptr;  // outlives the store; null: the engine alone has what is written
};

class HostedStore final : public SharedKvStore, public NameRoomUser {
 public:
  // The engine must outlive the store, and nobody else may write this store's keys to it. kCorrupt when what is there
  // does not decode.
  static Result<std::unique_ptr<HostedStore>> Open(KvEngine& engine, const HostedStoreOptions& options = {});
  ~HostedStore() override;  // REQUIRES: no watch is left, and (unchecked) no call in progress

  Result<std::optional<KvEntry>> Get(const Context& context, std::string_view key) override;
  Result<KvRange> Range(const Context& context, std::string_view begin, std::string_view end, size_t limit) override;
  Result<uint64_t> VisitDurable(const Context& context, std::string_view begin, std::string_view end,
                                const EntryVisitor& visit) override;
  Result<KvSnapshot> Read(const Context& context, std::span<const KvSpan> spans) override;
  Result<uint64_t> Commit(const Context& context, const Transaction& transaction) override;
  Status Sync(const Context&) override { return {}; }
  KvLimits limits() const override;

  Result<LeaseId> GrantLease(const Context& context, std::chrono::milliseconds ttl) override;
  Result<std::chrono::milliseconds> KeepLeaseAlive(const Context&, LeaseId lease) override;
  Status RevokeLease(const Context& context, LeaseId lease) override;
  Result<std::unique_ptr<KvWatch>> Watch(const Context& context, std::string_view begin, std::string_view end,
                                         uint64_t after_revision, WatchCallbacks callbacks) override;

  // As Watch, but 0 is the revision of a store that was never written to.
  Result<std::unique_ptr<KvWatch>> WatchAfter(std::string_view begin, std::string_view end, uint64_t after_revision,
                                              WatchCallbacks callbacks);
  // As Read, but hands over each entry as it is read, and keeps none. Here an empty end means the end of all keys. The
  // engine keeps the state that it reads for as long as it runs.
  struct Piece {
    uint64_t revision;             // of the store, the same for all
    size_t span;                   // index of its span; they come in order
    std::optional<KvEntry> entry;  // nullopt: the span's limit cut off the rest
  };
  // `take` says whether to go on. Returns the revision.
  Result<uint64_t> ReadPieces(std::span<const KvSpan> spans, const std::function<bool(Piece)>& take);

  void SetNameRoom(NameRoom* room) override;  // REQUIRES: HostedStoreOptions::keeps_room
  std::optional<uint64_t> RoomForNames() const override;

  // The id of this opening of the store; and whether the store is, or was, in a state that a client knows: `opening`
  // told the client of `revision` (0: it is not known which opening did). If it never was, the store went back.
  uint64_t opening() const { return openings_.current(); }
  Result<bool> WasAt(uint64_t opening, uint64_t revision);
  // Commit on behalf of a client far away (slots.h).
  Result<SlottedAnswer> CommitSlotted(const Transaction& transaction, const SlotClaim& slot);

 private:
  struct Request;

  HostedStore(KvEngine& engine, const HostedStoreOptions& options, uint64_t revision);

  // Waits until the request is answered. Meanwhile this thread may lead: write the requests of others too.
  void Submit(Request& request) EXCLUDES_LOCK(queue_mutex_);
  std::vector<Request*> TakeBatch() REQUIRES_LOCK(queue_mutex_);
  // These three: REQUIRES (unchecked): the caller leads.
  void Process(const std::vector<Request*>& batch);
  Status ReloadAfterFailure();
  void RememberOperation(const std::string& id, uint64_t revision);
  Status AdmitNames(NameChange change, uint32_t uid, uint64_t unwritten_bytes);
  Status WriteBatch(const HostedBatch& work);

  // Whether what this store says now holds for all: of a host that lost the names to another one it does not.
  Status MayAnswer() const { return log_ == nullptr ? Status() : log_->MayAnswer(); }

  Status ReadSpan(const KvSpan& span, const EngineSnapshot& snapshot,
                  const std::function<bool(std::optional<KvEntry>)>& take);
  void EndLeases(const Context& context);

  KvEngine& engine_;
  StoreLog* const log_;  // null: as in the options
  Openings openings_;    // constant once open
  History history_;      // self-synchronised
  LeaseTable leases_;    // self-synchronised; but for KeepAlive and expiry, changed by the leader alone
  const bool keeps_room_;
  mutable Mutex room_mutex_;  // held while it is asked
  NameRoom* room_ GUARDED_BY(room_mutex_) = nullptr;

  // Of the leader.
  uint64_t revision_;
  bool must_reload_ = false;     // a write failed, and what it did is not known
  uint64_t spent_revision_ = 0;  // the last of a batch that failed: the standby may have it
  std::unordered_map<std::string, uint64_t> operations_;
  std::deque<std::string> operation_order_;  // kOperationsRemembered at most

  Mutex queue_mutex_;
  std::deque<Request*> queue_ GUARDED_BY(queue_mutex_);  // one for each thread that waits in Submit
  bool has_leader_ GUARDED_BY(queue_mutex_) = false;

  std::stop_source stop_;  // of the thread
  std::thread expiry_;
};

}  // namespace cairnfs::kv
