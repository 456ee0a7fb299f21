#include "store/chunk_reader.h"

#include <algorithm>
#include <cassert>

#include "chunking/digest.h"

namespace cairnfs::store {
namespace {

constexpr int kAttemptsMax = 4;
constexpr size_t kSmallReadBytesMax = 128 * kKiB;  // a pool buffer of a megabyte would be wasted on less
constexpr size_t kBytesPerBuffer = io::BufferPool::kPayloadBytes;
static_assert(kBytesPerBuffer % kPageBytes == 0);

}  // namespace

struct ChunkReader::Operation {
  explicit Operation(const Digest& digest_in) : digest(digest_in) {}
  const Digest digest;
  Location location;
  SegmentPtr segment;
  std::shared_ptr<io::File> file;
  std::vector<io::BufferRef> buffers;   // or else
  std::shared_ptr<std::byte[]> memory;  // small reads, and reads for which the pool has nothing
  uint64_t read_begin = 0;              // page-aligned range that holds the data
  size_t read_bytes = 0;
  int attempts = 0;
  size_t prefetch_charge = 0;
  std::atomic<size_t> reads_left{0};
  std::atomic<bool> short_read{false};
  Mutex error_mutex;
  std::optional<Error> error GUARDED_BY(error_mutex);
  // Guarded by the reader's mutex_.
  std::vector<ChunkCallback> waiting;
  bool prefetch = false;

  size_t buffer_count() const { return (read_bytes + kBytesPerBuffer - 1) / kBytesPerBuffer; }
  // Where the part of the read that begins at i * kBytesPerBuffer goes.
  std::byte* target(size_t i) const { return memory ? memory.get() + i * kBytesPerBuffer : buffers[i].payload(); }
  void DropMemory() {
    buffers.clear();
    memory.reset();
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
      verify_("cairn-verify", verify_threads),
      slow_("cairn-slow-read", 1) {}

ChunkReader::~ChunkReader() {
  MutexLock lock(mutex_);
  while (running_ > 0) changed_.Wait(mutex_);
}

void ChunkReader::Get(const Digest& digest, ChunkCallback done) {
  if (auto cached = cache_.Find(digest)) {
    counters_.cache_hits.fetch_add(1, std::memory_order_relaxed);
    done(*std::move(cached));
    return;
  }
  counters_.cache_misses.fetch_add(1, std::memory_order_relaxed);
  OperationPtr operation;
  {
    MutexLock lock(mutex_);
    OperationPtr& slot = in_flight_[digest];
    if (slot) {
      slot->waiting.push_back(std::move(done));
      return;
    }
    slot = operation = std::make_shared<Operation>(digest);
    operation->waiting.push_back(std::move(done));
    ++running_;
  }
  Locate(operation);
}

void ChunkReader::Prefetch(const Digest& digest) {
  if (pool_.UnderPressure() || prefetch_bytes_.load(std::memory_order_relaxed) >= prefetch_bytes_max_) return;
  if (cache_.Contains(digest)) return;
  OperationPtr operation;
  {
    MutexLock lock(mutex_);
    OperationPtr& slot = in_flight_[digest];
    if (slot) return;
    slot = operation = std::make_shared<Operation>(digest);
    operation->prefetch = true;
    ++running_;
  }
  Locate(operation);
}

void ChunkReader::Locate(const OperationPtr& operation) {
  for (;;) {
    auto found = index_.Find(operation->digest);
    if (!found.ok()) return Finish(operation, found.error());
    if (!found->has_value()) {
      return Finish(operation, MakeError(ErrorCode::kNotFound, "no chunk " + operation->digest.ToHex()));
    }
    operation->location = **found;
    operation->segment = segments_.Find(operation->location.segment);
    if (operation->segment) break;
    // Compaction moves the entry before it frees the segment, so the next look finds the new place.
    if (++operation->attempts >= kAttemptsMax) {
      return Finish(operation, MakeError(ErrorCode::kCorrupt,
                                         "chunk " + operation->digest.ToHex() + ": the index names " +
                                             MakeSegmentName(SegmentName::kSegment, operation->location.segment) +
                                             ", which is missing; `cairnfs check` lists what is"));
    }
  }
  auto file = segments_.FileOf(*operation->segment);
  if (!file.ok()) {
    // The segment was freed and its file renamed in between, or the disk failed: look again.
    if (++operation->attempts < kAttemptsMax) return Locate(operation);
    Error error = file.error();
    if (error.code == ErrorCode::kNotFound) error.code = ErrorCode::kCorrupt;  // the chunk exists, its file does not
    report_(error);
    return Finish(operation, std::move(error));
  }
  operation->file = *std::move(file);
  uint64_t data_end = operation->location.data_offset() + operation->location.stored_bytes;
  operation->read_begin = AlignDown(operation->location.data_offset(), kPageBytes);
  operation->read_bytes = AlignUp(data_end, kPageBytes) - operation->read_begin;
  TakeBuffers(operation);
}

// --- buffers -----------------------------------------------------------------------------------------------------

bool ChunkReader::TryTakeBuffers(Operation& operation) {
  while (operation.buffers.size() < operation.buffer_count()) {
    io::BufferRef buffer = pool_.TryAcquire();
    if (!buffer) return false;
    operation.buffers.push_back(std::move(buffer));
  }
  return true;
}

void ChunkReader::TakeBuffers(const OperationPtr& operation) {
  size_t count = operation->buffer_count();
  if (operation->read_bytes <= kSmallReadBytesMax) {
    TakeMemory(*operation);
    return StartRead(operation);
  }
  bool prefetch;
  {
    MutexLock lock(mutex_);
    prefetch = operation->prefetch && operation->waiting.empty();
  }
  if (prefetch && operation->prefetch_charge == 0) {
    operation->prefetch_charge = count * io::BufferPool::kBufferBytes;
    prefetch_bytes_.fetch_add(operation->prefetch_charge, std::memory_order_relaxed);
  }
  if (!TryTakeBuffers(*operation)) {
    cache_.MakeRoom(count);
    if (!TryTakeBuffers(*operation)) {
      operation->buffers.clear();
      if (prefetch) return Finish(operation, MakeError(ErrorCode::kUnavailable, "no buffer is free"));
      TakeMemory(*operation);
    }
  }
  StartRead(operation);
}

// Memory of its own: a read never waits for buffers, which other reads that wait for more may hold.
void ChunkReader::TakeMemory(Operation& operation) {
  if (operation.read_bytes == 0) return;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kPageBytes, operation.read_bytes));
  if (memory == nullptr) throw std::bad_alloc();
  operation.memory = std::shared_ptr<std::byte[]>(memory, FreeDeleter());
}

// --- reading -----------------------------------------------------------------------------------------------------

ChunkData ChunkReader::Slices(const Operation& operation) {
  ChunkData data;
  data.size = operation.location.raw_bytes;
  size_t skip = operation.location.data_offset() - operation.read_begin;
  size_t left = data.size;
  if (operation.memory) {
    data.slices.push_back(io::Slice{{}, operation.memory.get() + skip, data.size, operation.memory});
    return data;
  }
  for (const io::BufferRef& buffer : operation.buffers) {
    size_t size = std::min(left, kBytesPerBuffer - skip);
    if (size > 0) data.slices.push_back(io::Slice{buffer, buffer.payload() + skip, size});
    left -= size;
    skip = 0;
  }
  return data;
}

void ChunkReader::StartRead(const OperationPtr& operation) {
  std::vector<MutableByteSpan> spans;
  ChunkData data = Slices(*operation);
  for (const io::Slice& slice : data.slices) spans.emplace_back(const_cast<std::byte*>(slice.data), slice.size);
  switch (writer_.CopyStaged(operation->location.segment, operation->location.data_offset(), spans)) {
    case SegmentWriter::Staged::kCopied: return Finish(operation, std::move(data));
    case SegmentWriter::Staged::kNo: data = {}; return ReadFromDisk(operation);
    case SegmentWriter::Staged::kPartly: break;
  }
  data = {};
  slow_.Post([this, operation] {
    // A failure here shows when the chunk is verified.
    (void)writer_.WriteOut(SegmentWriter::WriteOutScope::kWriteOnly);
    ReadFromDisk(operation);
  });
}

void ChunkReader::ReadFromDisk(const OperationPtr& operation) {
  operation->short_read = false;
  size_t count = operation->buffer_count();
  if (count == 0) return verify_.Post([this, operation] { Verify(operation); });
  operation->reads_left = count;
  for (size_t i = 0; i < count; ++i) {
    size_t at = i * kBytesPerBuffer;
    size_t size = std::min(kBytesPerBuffer, operation->read_bytes - at);
    // The last block may lie past the end of a file that was cut short; what counts is the chunk's own bytes.
    uint64_t data_end = operation->location.data_offset() + operation->location.stored_bytes;
    uint64_t begin = operation->read_begin + at;
    size_t needed = std::min<uint64_t>(size, data_end - begin);
    counters_.disk_read_bytes.fetch_add(size, std::memory_order_relaxed);
    operation->file->ReadAsync(begin, MutableByteSpan(operation->target(i), size),
                               [this, operation, needed](Result<size_t> result) {
                                 if (!result.ok()) {
                                   MutexLock lock(operation->error_mutex);
                                   operation->error = result.error();
                                 } else if (*result < needed) {
                                   operation->short_read = true;
                                 }
                                 if (operation->reads_left.fetch_sub(1) == 1) {
                                   verify_.Post([this, operation] { Verify(operation); });
                                 }
                               });
  }
}

void ChunkReader::Verify(const OperationPtr& operation) {
  std::optional<Error> error;
  {
    MutexLock lock(operation->error_mutex);
    error = std::exchange(operation->error, std::nullopt);
  }
  const std::string where = "chunk " + operation->digest.ToHex() + " in " + operation->segment->name() + " at offset " +
                            std::to_string(operation->location.offset);
  if (error) return Retry(operation, error->WithContext(where));
  if (operation->short_read) {
    return Retry(operation, MakeError(ErrorCode::kCorrupt, where + ": the segment file ends before the chunk does"));
  }
  ChunkData data = Slices(*operation);
  chunking::Digester digester;
  for (const io::Slice& slice : data.slices) digester.Update(slice.bytes());
  if (digester.Finish() != operation->digest) {
    data = {};
    return Retry(operation, MakeError(ErrorCode::kCorrupt, where + ": the bytes do not match the digest"));
  }
  operation->DropMemory();
  Finish(operation, cache_.InsertRead(operation->digest, std::move(data)));
}

// The chunk may have moved since it was looked up; a second look tells damage from that.
void ChunkReader::Retry(const OperationPtr& operation, Error error) {
  operation->DropMemory();
  operation->file.reset();
  operation->segment.reset();
  Location before = operation->location;
  auto found = index_.Find(operation->digest);
  bool moved = found.ok() && found->has_value() && **found != before;
  if (moved && ++operation->attempts < kAttemptsMax) return Locate(operation);
  if (error.code == ErrorCode::kCorrupt) counters_.corrupt_chunks.fetch_add(1, std::memory_order_relaxed);
  report_(error);
  Finish(operation, std::move(error));
}

void ChunkReader::Finish(const OperationPtr& operation, Result<ChunkData> result) {
  operation->DropMemory();
  operation->file.reset();
  operation->segment.reset();
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
  prefetch_bytes_.fetch_sub(std::exchange(operation->prefetch_charge, 0), std::memory_order_relaxed);
  if (retry) return Locate(operation);
  for (size_t i = 0; i < waiting.size(); ++i) {
    if (i + 1 < waiting.size()) {
      waiting[i](result);
    } else {
      waiting[i](std::move(result));
    }
  }
  MutexLock lock(mutex_);
  --running_;
  changed_.NotifyAll();
}

}  // namespace cairnfs::store
