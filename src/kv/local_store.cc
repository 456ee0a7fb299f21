#include "kv/local_store.h"

#include <cassert>

#include "base/coding.h"
#include "base/failpoint.h"
#include "base/printable.h"
#include "kv/local_store_format.h"

namespace cairnfs::kv {
namespace {

Failpoint flush_begin("kv.flush_begin", Failpoint::Kind::kKill);
Failpoint flush_done("kv.flush_done", Failpoint::Kind::kKill);

// For 30,000 to 50,000 keys: so a directory of 10,000 files is listed, and removed, without reads of RocksDB.
constexpr size_t kReadCacheBytes = 16 * kMiB;

}  // namespace

std::string LeaseKey(uint64_t lease) { return Encoder().Text(kLeasesBegin).BigEndianU64(lease).Take(); }

std::string AttachmentKey(uint64_t lease, std::string_view engine_key) {
  return Encoder().Text(kAttachmentsBegin).BigEndianU64(lease).Text(engine_key).Take();
}

std::string EncodeStored(uint64_t revision, std::string_view value) {
  std::string text = Encoder().U64(revision).Take();
  text.append(value);
  return text;
}

Result<StoredValue> DecodeStored(std::string_view engine_key, std::string_view text) {
  if (text.size() < kRevisionBytes) {
    return MakeError(ErrorCode::kCorrupt, "the stored value of key '" + PrintableAscii(engine_key) + "' has " +
                                              std::to_string(text.size()) + " bytes, too few for its revision");
  }
  Decoder decoder(text);
  uint64_t revision = decoder.U64();
  return StoredValue{revision, decoder.Rest()};
}

Result<std::optional<uint64_t>> ReadRevision(KvEngine& engine, const EngineSnapshot* snapshot) {
  CAIRNFS_ASSIGN_OR_RETURN(std::optional<std::string> stored, engine.Get(kRevisionKey, snapshot));
  if (!stored) return std::optional<uint64_t>();
  if (stored->size() != kRevisionBytes) {
    return MakeError(ErrorCode::kCorrupt,
                     "the store's revision (key 'R') has " + std::to_string(stored->size()) + " bytes instead of 8");
  }
  return std::optional<uint64_t>(Decoder(*stored).U64());
}

Status CheckNoKeys(KvEngine& engine) {
  bool has_keys = false;
  CAIRNFS_RETURN_IF_ERROR(engine.Scan(kKeysBegin, kKeysEnd, nullptr, [&](std::string_view, std::string_view) {
    has_keys = true;
    return false;
  }));
  if (!has_keys) return {};
  return MakeError(ErrorCode::kCorrupt, "the store holds keys, but its revision (key 'R') is missing");
}

Result<std::unique_ptr<LocalKvStore>> LocalKvStore::Open(KvEngine& engine) {
  CAIRNFS_ASSIGN_OR_RETURN(std::optional<uint64_t> revision, ReadRevision(engine, nullptr));
  std::unique_ptr<LocalKvStore> store(new LocalKvStore(engine));
  if (revision) {
    store->revision_ = *revision;
    return store;
  }
  CAIRNFS_RETURN_IF_ERROR(CheckNoKeys(engine));
  return store;
}

LocalKvStore::~LocalKvStore() = default;

const LocalKvStore::Value* LocalKvStore::FindInLayers(std::string_view key) const {
  if (auto found = active_.find(key); found != active_.end()) return &found->second;
  if (auto found = frozen_.find(key); found != frozen_.end()) return &found->second;
  return nullptr;
}

LocalKvStore::LocalKvStore(KvEngine& engine) : engine_(engine), cache_(kReadCacheBytes) {}

Result<ReadCache::Known> LocalKvStore::ReadPastLayers(std::string_view key, uint64_t cache_epoch) {
  if (auto known = cache_.Find(key)) return std::move(*known);
  const std::string engine_key = EngineKey(key);
  CAIRNFS_ASSIGN_OR_RETURN(std::optional<std::string> text, engine_.Get(engine_key));
  ReadCache::Known known;
  if (text) {
    CAIRNFS_ASSIGN_OR_RETURN(StoredValue stored, DecodeStored(engine_key, *text));
    known = {stored.revision, std::string(stored.value)};
  }
  cache_.Insert(key, known, cache_epoch);
  return known;
}

Result<std::optional<KvEntry>> LocalKvStore::Get(const Context&, std::string_view key) {
  const uint64_t cache_epoch = cache_.epoch();
  {
    std::shared_lock lock(mutex_);
    if (const Value* value = FindInLayers(key)) {
      if (!value->value) return std::optional<KvEntry>();
      return std::optional<KvEntry>(KvEntry{std::string(key), *value->value, value->revision});
    }
  }
  // If the key was committed and flushed since, `known` is still a value that it had during this call.
  CAIRNFS_ASSIGN_OR_RETURN(ReadCache::Known known, ReadPastLayers(key, cache_epoch));
  if (!known.value) return std::optional<KvEntry>();
  return std::optional<KvEntry>(KvEntry{std::string(key), std::move(*known.value), known.revision});
}

KvLimits LocalKvStore::limits() const {
  return KvLimits{.operations_per_transaction_max = 1 << 16, .transaction_bytes_max = 64 << 20};
}

void LocalKvStore::CommitLate(const std::vector<KvWrite>& writes) {
  if (writes.empty()) return;
  const WatchedBefore before = ReadWatched(writes);
  std::unique_lock lock(mutex_);
  assert(has_frozen_ && !is_flushing_);
  ++revision_;
  for (const KvWrite& write : writes) PutInLayer(frozen_, frozen_bytes_, write, revision_);
  TellWatcher(writes, before, revision_);
}

void LocalKvStore::Watch(char letter, Watcher watcher) {
  std::unique_lock lock(mutex_);
  if (watcher) {
    watchers_[letter] = std::move(watcher);
  } else {
    watchers_.erase(letter);
  }
}

const LocalKvStore::Watcher* LocalKvStore::WatcherOf(const KvWrite& write) const {
  const auto found = write.key.empty() ? watchers_.end() : watchers_.find(write.key[0]);
  return found == watchers_.end() ? nullptr : &found->second;
}

LocalKvStore::WatchedBefore LocalKvStore::ReadWatched(const std::vector<KvWrite>& writes) {
  std::vector<const KvWrite*> watched;
  {
    std::shared_lock lock(mutex_);
    for (const KvWrite& write : writes) {
      if (WatcherOf(write) != nullptr) watched.push_back(&write);
    }
  }
  WatchedBefore before;
  before.reserve(watched.size());
  for (const KvWrite* write : watched) {
    auto entry = Get({}, write->key);
    bool there = entry.ok() && entry->has_value();
    before.push_back(there ? std::optional<std::string>(std::move((*entry)->value)) : std::nullopt);
  }
  return before;
}

void LocalKvStore::TellWatcher(const std::vector<KvWrite>& writes, const WatchedBefore& before, uint64_t revision) {
  auto was = before.begin();
  for (const KvWrite& write : writes) {
    if (was == before.end()) return;
    const Watcher* watcher = WatcherOf(write);
    if (watcher == nullptr) continue;
    // A late write below a newer one cannot be seen.
    const Value* now = FindInLayers(write.key);
    if (now != nullptr && now->revision == revision) (*watcher)(write.key, *was, now->value, revision);
    ++was;
  }
}

void LocalKvStore::TellCache(const Layer& layer) {
  cache_.BeginEpoch();
  for (const auto& [key, value] : layer) cache_.Update(key, value.revision, value.value);
}

Status LocalKvStore::FlushFrozen() {
  MutexLock lock(flush_mutex_);
  return FlushFrozenLocked();
}

Status LocalKvStore::FlushFrozenLocked() {
  uint64_t revision;
  {
    std::unique_lock lock(mutex_);
    if (!has_frozen_) return {};
    is_flushing_ = true;
    revision = revision_;  // at least that of every write in the layer
  }
  flush_begin.Pass();
  std::vector<EngineWrite> writes;
  writes.reserve(frozen_.size() + 1);
  for (const auto& [key, value] : frozen_) {
    writes.push_back(EngineWrite{EngineKey(key), std::nullopt});
    if (value.value) writes.back().value = EncodeStored(value.revision, *value.value);
  }
  writes.push_back(EngineWrite{std::string(kRevisionKey), Encoder().U64(revision).Take()});
  Status status = engine_.Write(writes, WriteMode::kSynced);
  if (status.ok()) {
    flush_done.Pass();
    TellCache(frozen_);
  }

  Layer written;  // freed after the lock is released
  std::unique_lock lock(mutex_);
  is_flushing_ = false;
  if (!status.ok()) return status;
  written.swap(frozen_);
  frozen_bytes_ = 0;
  has_frozen_ = false;
  ++engine_epoch_;
  lock.unlock();
  return {};
}

Status LocalKvStore::Sync(const Context&) {
  MutexLock lock(flush_mutex_);
  // A layer that an earlier flush could not write comes first.
  CAIRNFS_RETURN_IF_ERROR(FlushFrozenLocked());
  if (!Freeze()) return {};
  return FlushFrozenLocked();
}

bool LocalKvStore::HasUnflushed() const {
  std::shared_lock lock(mutex_);
  return !active_.empty() || !frozen_.empty();
}

bool LocalKvStore::HasUnflushed(std::string_view begin, std::string_view end, const ChangeMatcher& matches) const {
  std::shared_lock lock(mutex_);
  for (const Layer* layer : {&active_, &frozen_}) {
    for (auto it = layer->lower_bound(begin); it != layer->end() && it->first < end; ++it) {
      if (matches(it->first, it->second.value)) return true;
    }
  }
  return false;
}

size_t LocalKvStore::UnflushedBytes() const {
  std::shared_lock lock(mutex_);
  return active_bytes_ + frozen_bytes_;
}

Status LocalKvStore::CommitDurable(const std::vector<KvWrite>& writes) {
  MutexLock flush_lock(flush_mutex_);
  uint64_t revision;
  {
    std::unique_lock lock(mutex_);
    revision = ++revision_;
  }
  std::vector<EngineWrite> engine_writes;
  engine_writes.reserve(writes.size() + 1);
  for (const KvWrite& write : writes) {
    engine_writes.push_back(EngineWrite{EngineKey(write.key), std::nullopt});
    if (write.value) engine_writes.back().value = EncodeStored(revision, *write.value);
  }
  engine_writes.push_back(EngineWrite{std::string(kRevisionKey), Encoder().U64(revision).Take()});
  CAIRNFS_RETURN_IF_ERROR(engine_.Write(engine_writes, WriteMode::kSynced));
  cache_.BeginEpoch();
  for (const KvWrite& write : writes) cache_.Update(write.key, revision, write.value);
  std::unique_lock lock(mutex_);
  ++engine_epoch_;
  return {};
}

}  // namespace cairnfs::kv
