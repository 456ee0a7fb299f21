#include "store/journal.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/failpoint.h"
#include "base/log.h"
#include "chunking/digest.h"
#include "store/store_impl.h"

namespace cairnfs::store {
namespace {

Failpoint journal_written("store.journal_written", Failpoint::Kind::kKill);
Failpoint journal_replayed("store.journal_replayed", Failpoint::Kind::kKill);

constexpr std::string_view kJournalBegin = "J";
constexpr std::string_view kJournalEnd = "K";

// Bounds on the bytes of one sync, and of all syncs until a segment is synced: the engine is made for names.
constexpr uint64_t kSyncBytesMax = 64 * kKiB;
constexpr uint64_t kJournalBytesMax = kMiB;
constexpr size_t kJournalChunksMax = 512;

std::string JournalKey(const Digest& digest) {
  std::string key(kJournalBegin);
  key += digest.AsKey();
  return key;
}

}  // namespace

Result<std::vector<Journal::Entry>> Journal::Load() {
  std::vector<Entry> entries;
  Status scanned = engine_.Scan(kJournalBegin, kJournalEnd, nullptr, [&](std::string_view key, std::string_view value) {
    key.remove_prefix(kJournalBegin.size());
    Digest name;
    const bool is_whole = key.size() == Digest::kBytes;
    if (is_whole) std::memcpy(name.bytes.data(), key.data(), key.size());
    if (is_whole && chunking::Names(name, chunking::ComputeDigest(AsBytes(value)))) {
      entries.push_back({name, std::string(value)});
    } else {
      spdlog::error("a chunk in the journal fails its digest, and is lost");
    }
    return true;
  });
  CAIRNFS_RETURN_IF_ERROR(scanned);
  return entries;
}

void Journal::Hold(const Entry& entry) {
  held_.insert(entry.digest);
  bytes_ += entry.bytes.size();
}

Status Journal::Write(std::vector<Entry> entries) {
  if (entries.empty()) return {};
  uint64_t added = 0;
  std::vector<kv::EngineWrite> writes;
  std::vector<Digest> digests;
  for (Entry& entry : entries) {
    added += entry.bytes.size();
    digests.push_back(entry.digest);
    writes.push_back({JournalKey(entry.digest), std::move(entry.bytes)});
  }
  CAIRNFS_RETURN_IF_ERROR(engine_.Write(writes, kv::WriteMode::kUnsynced));
  held_.insert(digests.begin(), digests.end());
  bytes_ += added;
  return {};
}

std::vector<kv::EngineWrite> Journal::Deletions() const {
  std::vector<kv::EngineWrite> deletions;
  for (const Digest& digest : held_) deletions.push_back({JournalKey(digest), std::nullopt});
  return deletions;
}

void Journal::Forget() {
  held_.clear();
  bytes_ = 0;
}

Status Journal::Drop() {
  if (held_.empty()) return {};
  CAIRNFS_RETURN_IF_ERROR(engine_.Write(Deletions(), kv::WriteMode::kUnsynced));
  Forget();
  return {};
}

// --- of the store ------------------------------------------------------------------------------------------------

Status LocalChunkStore::Impl::SyncWithEngine() {
  {
    MutexLock lock(sync_mutex_);
    while (sync_running_) sync_changed_.Wait(sync_mutex_);
    sync_running_ = true;
  }
  const bool is_journaled = TryJournal();
  {
    MutexLock lock(sync_mutex_);
    sync_running_ = false;
    sync_changed_.NotifyAll();
  }
  return is_journaled ? Status() : Sync();
}

bool LocalChunkStore::Impl::TryJournal() {
  if (failure_.failed() || space_.MetadataRoom(kJournalBytesMax) == 0) return false;
  std::vector<UnindexedChunk> chunks = index_.TakeUnindexed();
  auto entries = ReadToJournal(chunks);
  // The next sync of the segments writes their entries.
  index_.PutBackUnindexed(std::move(chunks));
  if (!entries || !journal_.Write(std::move(*entries)).ok()) return false;
  journal_written.Pass();
  return true;
}

// nullopt: the chunks are too large, or on their way to the disk already.
std::optional<std::vector<Journal::Entry>> LocalChunkStore::Impl::ReadToJournal(
    const std::vector<UnindexedChunk>& chunks) {
  if (chunks.size() > kJournalChunksMax) return std::nullopt;
  std::vector<Journal::Entry> entries;
  uint64_t bytes = 0;
  for (const UnindexedChunk& chunk : chunks) {
    // After a crash the index would still name the damaged copy. A sync of the segment changes that entry.
    if (chunk.replaced_bytes) return std::nullopt;
    if (journal_.Holds(chunk.digest)) continue;
    const Location& location = chunk.location;
    bytes += location.raw_bytes;
    if (bytes > kSyncBytesMax || journal_.bytes() + bytes > kJournalBytesMax) return std::nullopt;
    std::string text(location.raw_bytes, '\0');
    const MutableByteSpan span(reinterpret_cast<std::byte*>(text.data()), text.size());
    if (writer_.CopyStaged(location.segment, location.data_offset(), {&span, 1}) != SegmentWriter::Staged::kCopied) {
      return std::nullopt;
    }
    entries.push_back({chunk.digest, std::move(text)});
  }
  return entries;
}

Status LocalChunkStore::Impl::ReplayJournal() {
  CAIRNFS_ASSIGN_OR_RETURN(const std::vector<Journal::Entry> entries, journal_.Load());
  if (entries.empty()) return {};
  Status status;
  for (const Journal::Entry& entry : entries) {
    status = PutBack(entry);
    if (!status.ok()) break;
    journal_.Hold(entry);
  }
  // A check of a full disk may write nothing, and reads them from memory.
  if (status.ok() && engine_.Write({}, kv::WriteMode::kUnsynced).ok()) status = Sync();
  journal_replayed.Pass();
  if (status.ok()) return {};
  // The chunks are still in the engine. The store opens all the same, or nobody could make room.
  spdlog::error(
      "{} small chunks cannot be taken from the journal, and files that have them not be read until the next "
      "start: {}",
      entries.size(), status.error().message);
  return status.error().code == ErrorCode::kNoSpace || options_.tolerate_damage ? Status() : status;
}

// It may use room that saves may not, as a collection may.
Status LocalChunkStore::Impl::PutBack(const Journal::Entry& entry) {
  CAIRNFS_ASSIGN_OR_RETURN(ChunkIndex::Claim claim, index_.ClaimForPut(entry.digest));
  if (claim == ChunkIndex::Claim::kMustStore) {
    io::Slice slice;
    slice.data = reinterpret_cast<const std::byte*>(entry.bytes.data());
    slice.size = entry.bytes.size();
    auto appended = writer_.Append(entry.digest, {&slice, 1}, slice.size, SegmentWriter::Purpose::kCompaction);
    if (!appended.ok()) {
      index_.Abandon(entry.digest);
      return appended.error();
    }
    index_.Stored({entry.digest, appended->location, std::move(appended->segment)});
  }
  index_.Unpin(entry.digest);
  return {};
}

}  // namespace cairnfs::store
