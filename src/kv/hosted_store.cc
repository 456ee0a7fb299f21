#include "kv/hosted_store.h"

#include <cassert>
#include <random>

#include "base/clock.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "kv/hosted_batch.h"
#include "kv/local_store_format.h"

namespace cairnfs::kv {
namespace {

constexpr size_t kBatchRequestsMax = 4096;
constexpr size_t kBatchBytesMax = 16 << 20;
constexpr std::chrono::milliseconds kExpiryTick{100};
// A process that was stopped for longer could not hear that leases were kept alive.
constexpr std::chrono::milliseconds kPauseNoticed{1500};
constexpr std::chrono::milliseconds kLeaseMin{1}, kLeaseMax{std::chrono::hours(24 * 365)};

LeaseId RandomLease() {
  static thread_local std::random_device device;
  const uint64_t random = (uint64_t{device()} << 32 | device()) >> 1;
  return random == 0 ? 1 : random;
}

// When a write fails for another reason than want of room, the engine's log may hold it when it is opened again.
Error ErrorOfWrite(Error error) {
  if (error.code != ErrorCode::kNoSpace && !MayHaveRun(error.code)) error.code = ErrorCode::kIo;
  return error;
}

}  // namespace

// Lies on the stack of the thread that waits for it.
struct HostedStore::Request {
  // One of these.
  const Transaction* transaction = nullptr;
  std::optional<std::chrono::milliseconds> grant;  // of `lease`
  bool ends_lease = false;

  const SlotClaim* slot = nullptr;
  LeaseId lease = 0;
  Result<SlottedAnswer> answer{SlottedAnswer{}};
  bool is_done = false;  // guarded by queue_mutex_
  CondVar woken;
};

Result<std::unique_ptr<HostedStore>> HostedStore::Open(KvEngine& engine, const HostedStoreOptions& options) {
  CAIRNFS_ASSIGN_OR_RETURN(std::optional<uint64_t> revision, ReadRevision(engine, nullptr));
  if (!revision) CAIRNFS_RETURN_IF_ERROR(CheckNoKeys(engine));
  std::unique_ptr<HostedStore> store(new HostedStore(engine, options, revision.value_or(0)));
  CAIRNFS_RETURN_IF_ERROR(store->leases_.Load(engine));
  CAIRNFS_ASSIGN_OR_RETURN(store->openings_, Openings::Begin(engine, store->revision_, options.log));
  CAIRNFS_ASSIGN_OR_RETURN(store->expiry_, StartThread("the ends of leases", [store = store.get()] {
                             store->EndLeases(Context(store->stop_.get_token()));
                           }));
  return store;
}

HostedStore::HostedStore(KvEngine& engine, const HostedStoreOptions& options, uint64_t revision)
    : engine_(engine),
      log_(options.log),
      history_(revision, options.history_bytes_max),
      keeps_room_(options.keeps_room),
      revision_(revision) {}

HostedStore::~HostedStore() {
  stop_.request_stop();
  if (expiry_.joinable()) expiry_.join();
}

KvLimits HostedStore::limits() const {
  return KvLimits{.operations_per_transaction_max = 1 << 14, .transaction_bytes_max = 16 << 20};
}

Result<std::optional<KvEntry>> HostedStore::Get(const Context&, std::string_view key) {
  const std::string engine_key = EngineKey(key);
  CAIRNFS_ASSIGN_OR_RETURN(std::optional<std::string> text, engine_.Get(engine_key));
  CAIRNFS_RETURN_IF_ERROR(MayAnswer());
  if (!text) return std::optional<KvEntry>();
  CAIRNFS_ASSIGN_OR_RETURN(StoredValue stored, DecodeStored(engine_key, *text));
  return std::optional<KvEntry>(KvEntry{std::string(key), std::string(stored.value), stored.revision});
}

// A span with an empty end reaches to the end of all keys.
Status HostedStore::ReadSpan(const KvSpan& span, const EngineSnapshot& snapshot,
                             const std::function<bool(std::optional<KvEntry>)>& take) {
  const std::string engine_begin = EngineKey(span.begin), engine_end = EngineRangeEnd(span.end);
  if (engine_end <= engine_begin) return {};
  Status decoded;
  size_t count = 0;
  auto visit = [&](std::string_view engine_key, std::string_view text) {
    if (span.limit != 0 && count == span.limit) {
      take(std::nullopt);
      return false;
    }
    ++count;
    Result<StoredValue> stored = DecodeStored(engine_key, text);
    if (!stored.ok()) {
      decoded = stored.error();
      return false;
    }
    return take(KvEntry{std::string(engine_key.substr(1)), std::string(stored->value), stored->revision});
  };
  CAIRNFS_RETURN_IF_ERROR(engine_.Scan(engine_begin, engine_end, &snapshot, visit));
  return decoded;
}

Result<uint64_t> HostedStore::ReadPieces(std::span<const KvSpan> spans, const std::function<bool(Piece)>& take) {
  const std::unique_ptr<EngineSnapshot> snapshot = engine_.GetSnapshot();
  CAIRNFS_RETURN_IF_ERROR(MayAnswer());  // after it: so the snapshot was the newest state at some moment of the call
  CAIRNFS_ASSIGN_OR_RETURN(std::optional<uint64_t> revision, ReadRevision(engine_, snapshot.get()));
  bool goes_on = true;
  for (size_t i = 0; i < spans.size() && goes_on; ++i) {
    CAIRNFS_RETURN_IF_ERROR(ReadSpan(spans[i], *snapshot, [&](std::optional<KvEntry> entry) {
      goes_on = take({revision.value_or(0), i, std::move(entry)});
      return goes_on;
    }));
  }
  return revision.value_or(0);
}

Result<KvRange> HostedStore::Range(const Context&, std::string_view begin, std::string_view end, size_t limit) {
  KvRange range;
  const KvSpan span{std::string(begin), std::string(end), limit};
  CAIRNFS_ASSIGN_OR_RETURN(range.revision, ReadPieces({&span, 1}, [&](Piece piece) {
                             range.more = !piece.entry;
                             if (piece.entry) range.entries.push_back(std::move(*piece.entry));
                             return true;
                           }));
  return range;
}

Result<uint64_t> HostedStore::VisitDurable(const Context&, std::string_view begin, std::string_view end,
                                           const EntryVisitor& visit) {
  const KvSpan span{std::string(begin), std::string(end), 0};
  return ReadPieces({&span, 1}, [&](const Piece& piece) {
    return visit({piece.entry->key, piece.entry->value, piece.entry->revision});
  });
}

Result<KvSnapshot> HostedStore::Read(const Context&, std::span<const KvSpan> spans) {
  KvSnapshot result;
  result.ranges.resize(spans.size());
  std::vector<KvSpan> ended(spans.begin(), spans.end());
  for (KvSpan& span : ended) {
    if (span.end.empty()) span.end = span.begin + '\0';
  }
  CAIRNFS_ASSIGN_OR_RETURN(result.revision, ReadPieces(ended, [&](Piece piece) {
                             KvRange& range = result.ranges[piece.span];
                             range.more = !piece.entry;
                             if (piece.entry) range.entries.push_back(std::move(*piece.entry));
                             return true;
                           }));
  for (KvRange& range : result.ranges) range.revision = result.revision;
  return result;
}

Result<uint64_t> HostedStore::Commit(const Context&, const Transaction& transaction) {
  CAIRNFS_RETURN_IF_ERROR(CheckLimits(transaction, limits()));
  Request request;
  request.transaction = &transaction;
  Submit(request);
  CAIRNFS_RETURN_IF_ERROR(request.answer);
  if (!request.answer->committed) return CompareFailed();
  return request.answer->revision;
}

Result<SlottedAnswer> HostedStore::CommitSlotted(const Transaction& transaction, const SlotClaim& slot) {
  CAIRNFS_RETURN_IF_ERROR(CheckLimits(transaction, limits()));
  Request request;
  request.transaction = &transaction;
  request.slot = &slot;
  Submit(request);
  return request.answer;
}

Result<LeaseId> HostedStore::GrantLease(const Context&, std::chrono::milliseconds ttl) {
  if (ttl < kLeaseMin || ttl > kLeaseMax) {
    return MakeError(ErrorCode::kInvalidArgument, "a lease of " + std::to_string(ttl.count()) +
                                                      " ms: it must be of at least 1 ms and at most a year");
  }
  Request request;
  request.grant = ttl;
  do {
    request.lease = RandomLease();
  } while (leases_.Knows(request.lease));
  Submit(request);
  CAIRNFS_RETURN_IF_ERROR(request.answer);
  return request.lease;
}

Result<std::chrono::milliseconds> HostedStore::KeepLeaseAlive(const Context&, LeaseId lease) {
  Result<std::chrono::milliseconds> left = leases_.KeepAlive(lease);
  CAIRNFS_RETURN_IF_ERROR(MayAnswer());
  return left;
}

Status HostedStore::RevokeLease(const Context&, LeaseId lease) {
  Request request;
  request.ends_lease = true;
  request.lease = lease;
  Submit(request);
  CAIRNFS_RETURN_IF_ERROR(request.answer);
  return {};
}

Result<std::unique_ptr<KvWatch>> HostedStore::Watch(const Context&, std::string_view begin, std::string_view end,
                                                    uint64_t after_revision, WatchCallbacks callbacks) {
  if (after_revision == 0) return history_.WatchFromNowOn(begin, end, std::move(callbacks));
  return WatchAfter(begin, end, after_revision, std::move(callbacks));
}

Result<std::unique_ptr<KvWatch>> HostedStore::WatchAfter(std::string_view begin, std::string_view end,
                                                         uint64_t after_revision, WatchCallbacks callbacks) {
  // A revision above the engine's comes from a store that was ahead of this one.
  Result<std::optional<uint64_t>> revision = ReadRevision(engine_, nullptr);
  const bool is_lost = !revision.ok() || after_revision > revision->value_or(0);
  return history_.Watch(begin, end, {after_revision, is_lost}, std::move(callbacks));
}

void HostedStore::SetNameRoom(NameRoom* room) {
  assert(keeps_room_);
  MutexLock lock(room_mutex_);
  room_ = room;
}

std::optional<uint64_t> HostedStore::RoomForNames() const {
  MutexLock lock(room_mutex_);
  if (room_ == nullptr) return std::nullopt;
  return room_->BytesForUsers(0);
}

Status HostedStore::AdmitNames(NameChange change, uint32_t uid, uint64_t unwritten_bytes) {
  if (!keeps_room_) return {};
  MutexLock lock(room_mutex_);
  if (room_ != nullptr) return room_->Admit(change, uid, unwritten_bytes);
  if (change != NameChange::kMakes) return {};
  return MakeError(ErrorCode::kUnavailable, "the node that keeps the names starts, or stops");
}

Result<bool> HostedStore::WasAt(uint64_t opening, uint64_t revision) {
  if (opening != 0 && !openings_.Contain(opening, revision)) return false;
  CAIRNFS_ASSIGN_OR_RETURN(const std::optional<uint64_t> now, ReadRevision(engine_, nullptr));
  CAIRNFS_RETURN_IF_ERROR(MayAnswer());
  return revision <= now.value_or(0);
}

std::vector<HostedStore::Request*> HostedStore::TakeBatch() {
  std::vector<Request*> batch;
  size_t bytes = 0;
  while (!queue_.empty() && batch.size() < kBatchRequestsMax && bytes < kBatchBytesMax) {
    Request* request = queue_.front();
    if (request->transaction != nullptr) bytes += BytesOf(*request->transaction);
    batch.push_back(request);
    queue_.pop_front();
  }
  return batch;
}

void HostedStore::Submit(Request& request) {
  // Who would wait for a standby that nobody reaches takes no thread for it.
  if (Status may = MayAnswer(); !may.ok()) {
    request.answer = may.error();
    return;
  }
  MutexLock lock(queue_mutex_);
  queue_.push_back(&request);
  while (!request.is_done) {
    if (has_leader_) {
      request.woken.Wait(queue_mutex_);
      continue;
    }
    has_leader_ = true;
    const std::vector<Request*> batch = TakeBatch();
    lock.Unlock();
    Process(batch);
    lock.Lock();
    has_leader_ = false;
    for (Request* answered : batch) {
      answered->is_done = true;
      if (answered != &request) answered->woken.NotifyOne();
    }
    if (!queue_.empty()) queue_.front()->woken.NotifyOne();
  }
}

void HostedStore::Process(const std::vector<Request*>& batch) {
  auto fail = [&](const Error& error) {
    for (Request* request : batch) request->answer = error;
  };
  if (must_reload_) {
    if (Status reloaded = ReloadAfterFailure(); !reloaded.ok()) return fail(reloaded.error());
  }
  HostedBatch work(engine_, leases_, {.engine = revision_, .spent = spent_revision_},
                   [this](NameChange change, uint32_t uid, uint64_t unwritten_bytes) {
                     return AdmitNames(change, uid, unwritten_bytes);
                   });
  std::unordered_map<std::string_view, uint64_t> operations;  // of this batch
  for (Request* request : batch) {
    if (request->transaction == nullptr) {
      if (request->grant) work.Grant(request->lease, *request->grant);
      if (request->ends_lease) {
        if (Status ended = work.EndLease(request->lease); !ended.ok()) request->answer = ended.error();
      }
      continue;
    }
    const std::string& id = request->transaction->operation_id;
    if (auto found = operations_.find(id); !id.empty() && found != operations_.end()) {
      request->answer = SlottedAnswer{.committed = true, .revision = found->second};
    } else if (auto pending = operations.find(id); !id.empty() && pending != operations.end()) {
      request->answer = SlottedAnswer{.committed = true, .revision = pending->second};
    } else {
      request->answer = work.Commit(*request->transaction, request->slot);
      if (!id.empty() && request->answer.ok() && request->answer->committed) {
        operations.emplace(id, request->answer->revision);
      }
    }
  }
  work.Seal();
  if (!work.empty()) {
    // An error is also for requests that conflicted with a commit of this batch.
    if (Status written = WriteBatch(work); !written.ok()) return fail(written.error());
    work.ApplyTo(leases_);
    HostedBatch::Changes changes = work.TakeChanges();
    // Where revisions of a failed batch are left out, watches read anew.
    if (changes.front().first != revision_ + 1) history_.Restart(changes.front().first - 1);
    revision_ = work.revision();
    for (auto& [revision, events] : changes) history_.Append(revision, std::move(events));
  }
  for (const auto& [id, revision] : operations) RememberOperation(std::string(id), revision);
  if (Status may = MayAnswer(); !may.ok()) fail(may.error());
}

Status HostedStore::WriteBatch(const HostedBatch& work) {
  std::vector<EngineWrite> writes = work.Writes();
  if (log_ != nullptr) {
    LogEntry entry{{openings_.current(), revision_}, {openings_.current(), work.revision()}, std::move(writes)};
    CAIRNFS_RETURN_IF_ERROR(log_->BeforeWrite(entry));
    writes = std::move(entry.writes);
  }
  const Status written = engine_.Write(writes, WriteMode::kSynced);
  if (written.ok()) return {};
  must_reload_ = true;
  if (log_ != nullptr) {
    spent_revision_ = work.revision();
    CAIRNFS_RETURN_IF_ERROR(log_->WriteFailed());
  }
  return ErrorOfWrite(written.error());
}

Status HostedStore::ReloadAfterFailure() {
  CAIRNFS_ASSIGN_OR_RETURN(std::optional<uint64_t> revision, ReadRevision(engine_, nullptr));
  if (revision.value_or(0) != revision_) {
    CAIRNFS_RETURN_IF_ERROR(leases_.Load(engine_));
    revision_ = revision.value_or(0);
    history_.Restart(revision_);
  }
  must_reload_ = false;
  return {};
}

void HostedStore::RememberOperation(const std::string& id, uint64_t revision) {
  operations_[id] = revision;
  operation_order_.push_back(id);
  if (operation_order_.size() <= kOperationsRemembered) return;
  operations_.erase(operation_order_.front());
  operation_order_.pop_front();
}

void HostedStore::EndLeases(const Context& context) {
  auto last = Clock::Now();
  // Returns the time, and first looks whether the process was stopped since the last call.
  auto look = [&] {
    const auto now = Clock::Now();
    if (now - last > kPauseNoticed) leases_.ExtendAll();
    return last = now;
  };
  bool has_warned = false;
  while (context.Sleep(kExpiryTick)) {
    // The time is taken before: the process may be stopped right after that.
    for (LeaseId lease : leases_.TakeExpired(look())) {
      const Status ended = RevokeLease({}, lease);
      // A look after each write, so that many writes are not taken for a pause. A single write that takes so long is;
      // that only lets the other leases live on for their time.
      look();
      // A lease whose end cannot be written now is taken again at the next tick.
      if (!ended.ok()) {
        if (!has_warned) spdlog::warn("leases that are over cannot be ended for now: {}", ended.error().message);
        has_warned = true;
        break;
      }
    }
  }
}

}  // namespace cairnfs::kv
