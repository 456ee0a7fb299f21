#include "store/chunk_reader.h"

#include <algorithm>
#include <cassert>

#include "chunking/digest.h"

namespace cairnfs::store {
namespace {

constexpr int kAttemptsMax = 4;
// Chunks are read together across gaps of this size at most, and up to so many bytes in one read.
constexpr uint64_t kGapBytesMax = 64 * kKiB;
constexpr uint64_t kRunBytesMax = 4 * kMiB;
// Bytes that nobody waits for yet and that are on their way from the disk at once. docs/decisions/reading.md has the
// measurements.
constexpr size_t kLaneBytesMax = 16 * kMiB;
// Bounds on the memory of reads that have no pool buffer. The least holds a few of the longest chunks. The most is what
// the disk has on its way at once, and as much again for readers that have their chunk.
constexpr size_t kMemoryBytesMin = 16 * kMiB;
constexpr size_t kMemoryBytesMax = 32 * kMiB;

size_t MemoryBytes(const io::BufferPool& pool) {
  return std::clamp(pool.count() * io::BufferPool::kBufferBytes / 8, kMemoryBytesMin, kMemoryBytesMax);
}

}  // namespace

struct ChunkReader::Operation {
  explicit Operation(const Digest& digest_in) : digest(digest_in) {}
  const Digest digest;
  Location location;
  std::shared_ptr<SegmentRead> read;
  int attempts = 0;
  bool together = false;                                      // read with others
  bool partly_staged = false;                                 // the other part was written, this one cannot be
  bool ahead = false;                                         // when its read began, nobody waited for it
  std::atomic<ReadLane::Ticket> ticket{ReadLane::kNoTicket};  // while its read may stand in line
  // Guarded by the reader's mutex_.
  std::vector<ChunkCallback> waiting;
  bool prefetch = false;
  Reader reader = Reader::kNone;   // for whom it is read
  Reader used_by = Reader::kNone;  // who waits for it

  uint64_t begin() const { return location.data_offset(); }
  uint64_t end() const { return location.data_offset() + location.stored_bytes; }
  ChunkData Data() const { return ChunkData{read->Slices(begin(), location.raw_bytes), location.raw_bytes}; }
  static std::vector<MutableByteSpan> SpansOf(const ChunkData& data) {
    std::vector<MutableByteSpan> spans;
    for (const io::Slice& slice : data.slices) spans.emplace_back(const_cast<std::byte*>(slice.data), slice.size);
    return spans;
  }
};

ChunkReader::ChunkReader(io::BufferPool& pool, ChunkIndex& index, SegmentSet& segments, SegmentWriter& writer,
                         ChunkCache& cache, unsigned verify_threads, std::function<void(const Error&)> report)
    : pool_(pool),
      index_(index),
      segments_(segments),
      writer_(writer),
      cache_(cache),
      report_(std::move(report)),
      prefetch_bytes_max_(std::min(cache.bytes_max() / 2, 64 * kMiB)),
      lane_(kLaneBytesMax),
      memory_(std::make_shared<ReadMemory>(MemoryBytes(pool))),
      verify_("cairn-verify", verify_threads),
      slow_("cairn-slow-read", 1) {}

ChunkReader::~ChunkReader() {
  MutexLock lock(mutex_);
  while (running_ > 0) changed_.Wait(mutex_);
}

std::optional<ChunkData> ChunkReader::FindCached(const Digest& digest, Reader reader) {
  auto cached = cache_.Find(digest, reader);
  if (cached) counters_.cache_hits.fetch_add(1, std::memory_order_relaxed);
  return cached;
}

void ChunkReader::Get(const Digest& digest, Reader reader, ChunkCallback done) {
  if (auto cached = FindCached(digest, reader)) return done(*std::move(cached));
  counters_.cache_misses.fetch_add(1, std::memory_order_relaxed);
  GetFromDisk(digest, reader, std::move(done));
}

void ChunkReader::GetFromDisk(const Digest& digest, Reader reader, ChunkCallback done) {
  OperationPtr operation;
  ReadLane::Ticket ticket;
  {
    MutexLock lock(mutex_);
    OperationPtr& slot = in_flight_[digest];
    if (!slot) {
      slot = operation = std::make_shared<Operation>(digest);
      ++running_;
    }
    slot->waiting.push_back(std::move(done));
    slot->reader = std::max(slot->reader, reader);
    slot->used_by = std::max(slot->used_by, reader);
    ticket = slot->ticket.load(std::memory_order_relaxed);
  }
  if (operation) {
    Locate(operation);
  } else if (ticket != ReadLane::kNoTicket) {
    lane_.Hurry(ticket);
  }
}

void ChunkReader::Prefetch(std::span<const Digest> digests, Reader reader) {
  std::vector<Located> found;
  size_t bytes = prefetch_bytes_.load(std::memory_order_relaxed);
  for (const Digest& digest : digests) {
    if (pool_.UnderPressure() || bytes >= prefetch_bytes_max_) break;
    if (cache_.Contains(digest)) continue;
    OperationPtr operation;
    {
      MutexLock lock(mutex_);
      OperationPtr& slot = in_flight_[digest];
      if (slot) {
        slot->reader = std::max(slot->reader, reader);
        continue;
      }
      slot = operation = std::make_shared<Operation>(digest);
      operation->prefetch = true;
      operation->reader = reader;
      ++running_;
    }
    auto place = FindPlace(operation);
    if (!place) continue;
    bytes += operation->location.stored_bytes;
    found.push_back({std::move(operation), *std::move(place)});
  }
  // In the order of the disk; chunks that lie side by side share a read.
  std::stable_sort(found.begin(), found.end(), [](const Located& a, const Located& b) {
    return std::pair(a.operation->location.segment.value, a.operation->begin()) <
           std::pair(b.operation->location.segment.value, b.operation->begin());
  });
  std::span<const Located> left(found);
  while (!left.empty()) {
    const Operation& first = *left[0].operation;
    size_t count = 1;
    while (count < left.size() && left[count].place.segment == left[0].place.segment &&
           left[count].operation->begin() <= left[count - 1].operation->end() + kGapBytesMax &&
           left[count].operation->end() - first.begin() <= kRunBytesMax) {
      ++count;
    }
    StartTogether(left.first(count));
    left = left.subspan(count);
  }
}

void ChunkReader::Locate(const OperationPtr& operation) {
  if (auto place = FindPlace(operation)) StartAlone(operation, *std::move(place));
}

std::optional<OpenSegment> ChunkReader::FindPlace(const OperationPtr& operation) {
  auto end = [&](Error error) {
    Finish(operation, std::move(error));
    return std::nullopt;
  };
  const Location& location = operation->location;
  for (;;) {
    auto found = index_.Find(operation->digest);
    if (!found.ok()) return end(found.error());
    if (!found->has_value()) return end(MakeError(ErrorCode::kNotFound, "no chunk " + operation->digest.ToHex()));
    operation->location = **found;
    SegmentPtr segment = segments_.Find(location.segment);
    if (!segment) {
      // Compaction moves the entry before it frees the segment, so the next look finds the new place.
      if (++operation->attempts < kAttemptsMax) continue;
      index_.NoteDamaged(operation->digest, location);
      return end(MakeError(ErrorCode::kCorrupt, "chunk " + operation->digest.ToHex() + ": the index names " +
                                                    MakeSegmentName(SegmentName::kSegment, location.segment) +
                                                    ", which is missing; `cairnfs check` lists what is"));
    }
    auto file = segments_.FileOf(*segment);
    if (!file.ok()) {
      // The segment was freed and its file renamed in between, or the disk failed: look again.
      if (++operation->attempts < kAttemptsMax) continue;
      Error error = file.error();
      if (error.code == ErrorCode::kNotFound) {
        error.code = ErrorCode::kCorrupt;  // the chunk exists, its file does not
        index_.NoteDamaged(operation->digest, location);
      }
      report_(error);
      return end(std::move(error));
    }
    return OpenSegment{std::move(segment), *std::move(file)};
  }
}

// --- reading -----------------------------------------------------------------------------------------------------

void ChunkReader::StartAlone(const OperationPtr& operation, OpenSegment place) {
  bool prefetch;
  {
    MutexLock lock(mutex_);
    prefetch = operation->prefetch && operation->waiting.empty();
  }
  auto read = std::make_shared<SegmentRead>(std::move(place), operation->begin(), operation->end());
  operation->read = read;
  operation->ahead = prefetch;
  if (prefetch) read->ChargeTo(prefetch_bytes_);
  const bool small = read->bytes() <= kSmallChunkBytesMax;
  if (!small && TakeBuffers(*read)) return CopyOrRead(operation);
  if (prefetch) {
    if (small && memory_->TryEnter(read->bytes())) return StartWithMemory(operation);
    return Finish(operation, MakeError(ErrorCode::kUnavailable, "no buffer is free"));
  }
  const bool entered = memory_->EnterOrWait(
      read->bytes(), [this, operation] { verify_.Post([this, operation] { StartWithMemory(operation); }); });
  if (entered) StartWithMemory(operation);
}

bool ChunkReader::TakeBuffers(SegmentRead& read) {
  if (read.TakeBuffers(pool_)) return true;
  cache_.MakeRoom(read.buffer_count());
  return read.TakeBuffers(pool_);
}

void ChunkReader::StartWithMemory(const OperationPtr& operation) {
  operation->read->TakeMemory(memory_);
  CopyOrRead(operation);
}

// Starts the prefetches of one segment. REQUIRES: `run` is in the order of their places.
void ChunkReader::StartTogether(std::span<const Located> run) {
  assert(std::is_sorted(run.begin(), run.end(), [](const Located& a, const Located& b) {
    return a.operation->location.offset < b.operation->location.offset;
  }));
  const Operation &first = *run.front().operation, &last = *run.back().operation;
  auto read = std::make_shared<SegmentRead>(run.front().place, first.begin(), last.end());
  const bool alone = run.size() == 1 || writer_.HasStaged(first.location.segment, first.begin(), last.end()) ||
                     !read->TakeBuffers(pool_);
  if (alone) {
    for (const Located& located : run) StartAlone(located.operation, located.place);
    return;
  }
  read->ChargeTo(prefetch_bytes_);
  std::vector<OperationPtr> operations;
  const ReadLane::Ticket ticket = lane_.NewTicket();
  for (const auto& [operation, place] : run) {
    operation->read = read;
    operation->together = true;
    operation->ticket.store(ticket, std::memory_order_relaxed);
    operations.push_back(operation);
  }
  counters_.disk_read_bytes.fetch_add(read->bytes(), std::memory_order_relaxed);
  lane_.Start(ticket, read, [this, operations] {
    for (const OperationPtr& operation : operations) verify_.Post([this, operation] { Verify(operation); });
  });
  HurryIfAwaited(ticket, operations);
}

void ChunkReader::CopyOrRead(const OperationPtr& operation) {
  ChunkData data = operation->Data();
  switch (writer_.CopyStaged(operation->location.segment, operation->begin(), Operation::SpansOf(data))) {
    case SegmentWriter::Staged::kCopied: return Finish(operation, std::move(data));
    case SegmentWriter::Staged::kNo: data = {}; return ReadFromDisk(operation);
    case SegmentWriter::Staged::kPartly: break;
  }
  data = {};
  slow_.Post([this, operation] {
    // What cannot be written stays in the windows, and is laid over what the disk gives.
    operation->partly_staged = !writer_.WriteOut(SegmentWriter::WriteOutScope::kWriteOnly).ok();
    ReadFromDisk(operation);
  });
}

void ChunkReader::ReadFromDisk(const OperationPtr& operation) {
  auto verify = [this, operation] { verify_.Post([this, operation] { Verify(operation); }); };
  if (operation->read->bytes() == 0) return verify();
  counters_.disk_read_bytes.fetch_add(operation->read->bytes(), std::memory_order_relaxed);
  if (!operation->ahead) return SegmentRead::Start(operation->read, verify);
  const ReadLane::Ticket ticket = lane_.NewTicket();
  operation->ticket.store(ticket, std::memory_order_relaxed);
  lane_.Start(ticket, operation->read, verify);
  HurryIfAwaited(ticket, {&operation, 1});
}

// For callers that came after it was decided that nobody waits, and before they could see the ticket of the read that
// stands in line.
void ChunkReader::HurryIfAwaited(ReadLane::Ticket ticket, std::span<const OperationPtr> operations) {
  {
    MutexLock lock(mutex_);
    bool is_awaited = false;
    for (const OperationPtr& operation : operations) is_awaited = is_awaited || !operation->waiting.empty();
    if (!is_awaited) return;
  }
  lane_.Hurry(ticket);
}

void ChunkReader::Verify(const OperationPtr& operation) {
  const std::string where = "chunk " + operation->digest.ToHex() + " in " + operation->read->segment().name() +
                            " at offset " + std::to_string(operation->location.offset);
  Status came = operation->read->Check(operation->end());
  if (!came.ok()) return Retry(operation, came.error().WithContext(where));
  ChunkData data = operation->Data();
  if (operation->partly_staged) {
    (void)writer_.CopyStaged(operation->location.segment, operation->begin(), Operation::SpansOf(data));
  }
  chunking::Digester digester;
  for (const io::Slice& slice : data.slices) digester.Update(slice.bytes());
  if (!chunking::Names(operation->digest, digester.Finish())) {
    data = {};
    return Retry(operation, MakeError(ErrorCode::kCorrupt, where + ": the bytes do not match the digest"));
  }
  operation->read.reset();
  Finish(operation, Keep(*operation, std::move(data)));
}

ChunkData ChunkReader::Keep(const Operation& operation, ChunkData data) {
  Reader reader, used_by;
  {
    MutexLock lock(mutex_);
    reader = operation.reader;
    used_by = operation.used_by;
  }
  return cache_.InsertRead(operation.digest, std::move(data), reader, used_by);
}

// A neighbour in the same read may have failed, or the chunk may have moved since it was looked up. A second look tells
// damage from these.
void ChunkReader::Retry(const OperationPtr& operation, Error error) {
  operation->read.reset();
  if (std::exchange(operation->together, false)) return Locate(operation);
  if (std::exchange(operation->partly_staged, false)) {
    // A window may have been written between the read and the copy. That is no damage on the disk.
    if (++operation->attempts < kAttemptsMax) return Locate(operation);
    return Finish(operation, MakeError(ErrorCode::kIo, error.message + "; the disk refuses a part of them"));
  }
  Location before = operation->location;
  auto found = index_.Find(operation->digest);
  const bool present = found.ok() && found->has_value();
  if (present && **found != before && ++operation->attempts < kAttemptsMax) return Locate(operation);
  if (present) index_.NoteDamaged(operation->digest, before);
  if (error.code == ErrorCode::kCorrupt) counters_.corrupt_chunks.fetch_add(1, std::memory_order_relaxed);
  report_(error);
  Finish(operation, std::move(error));
}

void ChunkReader::Finish(const OperationPtr& operation, Result<ChunkData> result) {
  operation->read.reset();
  std::vector<ChunkCallback> waiting;
  bool retry = false;
  {
    MutexLock lock(mutex_);
    // Somebody joined a prefetch that found no buffer: the read goes on as an ordinary one.
    retry = operation->prefetch && !operation->waiting.empty() && !result.ok() &&
            result.error().code == ErrorCode::kUnavailable;
    if (retry) {
      operation->prefetch = false;
    } else {
      waiting = std::move(operation->waiting);
      in_flight_.erase(operation->digest);
    }
  }
  if (retry) return Locate(operation);
  for (size_t i = 0; i < waiting.size(); ++i) {
    if (i + 1 < waiting.size()) {
      waiting[i](result);  // NOLINT(bugprone-use-after-move): it is moved to the last one
    } else {
      waiting[i](std::move(result));
    }
  }
  MutexLock lock(mutex_);
  --running_;
  changed_.NotifyAll();
}

}  // namespace cairnfs::store
