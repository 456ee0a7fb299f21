#include "store/chunk_cache.h"

#include <algorithm>
#include <cassert>

namespace cairnfs::store {
namespace {

constexpr size_t kWrittenBytesMin = 256 * kKiB;
// The size of `passing`: what one reader has fetched ahead fits in. A larger one leaves less of what the readers of
// other hosts come for (measured in docs/decisions/reading.md). Chunks that still wait for their reader may take the
// whole share: those of other readers do not drive them out.
constexpr size_t kPassingBytes = 96 * kMiB;

// The bytes that a chunk counts for. Its name takes memory too.
size_t ChargeOf(const ChunkData& data) { return std::max(data.size, kPageBytes); }

bool OwnedByPool(std::span<const io::Slice> slices) {
  return std::all_of(slices.begin(), slices.end(), [](const io::Slice& slice) { return bool{slice.owner}; });
}

}  // namespace

ChunkCache::ChunkCache(io::BufferPool& pool, size_t bytes_max) : pool_(pool), bytes_max_(bytes_max) {}

std::optional<ChunkData> ChunkCache::Find(const Digest& digest, Reader reader) {
  MutexLock lock(mutex_);
  auto found = by_digest_.find(digest);
  if (found == by_digest_.end()) return std::nullopt;
  found->second->used_by = std::max(found->second->used_by, reader);
  Items& lasting = queues_[kLasting].items;
  if (found->second->queue == kLasting) lasting.splice(lasting.begin(), lasting, found->second);
  return found->second->data;
}

bool ChunkCache::Contains(const Digest& digest) {
  MutexLock lock(mutex_);
  return by_digest_.contains(digest);
}

ChunkData ChunkCache::Keep(const Digest& digest, ChunkData data, QueueName queue, Reader reader, Reader used_by) {
  if (data.size == 0) return data;
  if (data.size > kSmallChunkBytesMax) {
    if (OwnedByPool(data.slices)) Insert(digest, data, queue, reader, used_by);
    return data;
  }
  if (auto packed = Pack(data)) {
    Insert(digest, *packed, queue, reader, used_by);
    return *std::move(packed);
  }
  return data;
}

void ChunkCache::InsertWritten(const Digest& digest, std::span<const io::Slice> slices, size_t size) {
  if (size < kWrittenBytesMin || !OwnedByPool(slices)) return;
  ChunkData data;
  data.slices.assign(slices.begin(), slices.end());
  data.size = size;
  Insert(digest, data, kLasting, Reader::kThisHost, Reader::kNone);
}

std::optional<ChunkData> ChunkCache::Pack(const ChunkData& data) {
  MutexLock lock(pack_mutex_);
  if (!packed_ || packed_used_ + data.size > io::BufferPool::kPayloadBytes) {
    packed_ = pool_.TryAcquire();
    packed_used_ = 0;
    if (!packed_) return std::nullopt;
  }
  std::byte* to = packed_.payload() + packed_used_;
  size_t at = 0;
  for (const io::Slice& slice : data.slices) {
    std::memcpy(to + at, slice.data, slice.size);
    at += slice.size;
  }
  packed_used_ += data.size;
  ChunkData packed;
  packed.slices.push_back(io::Slice{packed_, to, data.size});
  packed.size = data.size;
  return packed;
}

// While the pool is short too, new chunks take the place of old ones.
void ChunkCache::Insert(const Digest& digest, const ChunkData& data, QueueName queue, Reader reader, Reader used_by) {
  const size_t charge = ChargeOf(data);
  if (charge > bytes_max_) return;
  const bool short_of_buffers = PoolIsShort();
  Items evicted;  // released after the lock
  MutexLock lock(mutex_);
  if (by_digest_.contains(digest)) return;
  const bool is_fetched = queue == kPassing;
  if (short_of_buffers && by_digest_.empty()) return;
  if (const Reader before = ForgetLeft(digest); before != Reader::kNone) {
    const bool is_read_again = before == Reader::kThisHost && reader == Reader::kThisHost;
    queue = is_read_again || queue == kLasting ? kLasting : kPassing;
  }
  size_t given = 0;
  while (!by_digest_.empty() &&
         (bytes_.load(std::memory_order_relaxed) + charge > bytes_max_ || (short_of_buffers && given < 2 * charge))) {
    EvictOne(&evicted);
    given += ChargeOf(evicted.back().data);
  }
  Items& items = queues_[queue].items;
  items.push_front(Item{digest, data, queue, is_fetched ? Reader::kNone : used_by, used_by != Reader::kNone});
  by_digest_.emplace(digest, items.begin());
  bytes_.fetch_add(charge, std::memory_order_relaxed);
  queues_[queue].bytes += charge;
  lock.Unlock();
}

ChunkCache::Queue& ChunkCache::QueueToShorten() {
  const size_t bytes = bytes_.load(std::memory_order_relaxed), share = bytes / 4;
  const Queue& passing = queues_[kPassing];
  const bool waits_for_reader =
      !passing.items.empty() && passing.items.back().used_by == Reader::kNone && !passing.items.back().is_handed_over;
  const size_t passing_share = waits_for_reader ? share : std::clamp(kPassingBytes, bytes / 8, share);
  if (passing.bytes > passing_share) return queues_[kPassing];
  if (queues_[kRecent].bytes > share) return queues_[kRecent];
  return queues_[kLasting];
}

void ChunkCache::EvictOne(Items* evicted) {
  Queue& queue = QueueToShorten();
  assert(!queue.items.empty());
  auto oldest = std::prev(queue.items.end());
  const size_t charge = ChargeOf(oldest->data);
  bytes_.fetch_sub(charge, std::memory_order_relaxed);
  queue.bytes -= charge;
  by_digest_.erase(oldest->digest);
  // A chunk that leaves before its reader came was not read yet, so its name is not remembered. Nor is that of a chunk
  // in `passing` that only other nodes used, or that was handed over as it came: the names of a whole restore would
  // push out those of the chunks that late hosts come for.
  const bool was_used = oldest->used_by != Reader::kNone;
  const bool is_done = oldest->queue == kPassing && oldest->used_by == Reader::kOtherNode;
  if (oldest->queue != kLasting && was_used && !is_done) Remember(*oldest);
  evicted->splice(evicted->end(), queue.items, oldest);
}

void ChunkCache::Remember(const Item& item) {
  left_.push_front(Left{item.digest, ChargeOf(item.data), item.used_by});
  left_by_digest_.emplace(item.digest, left_.begin());
  left_bytes_ += left_.front().size;
  while (left_bytes_ > bytes_max_ / 2) ForgetLeft(Digest(left_.back().digest));
}

Reader ChunkCache::ForgetLeft(const Digest& digest) {
  auto found = left_by_digest_.find(digest);
  if (found == left_by_digest_.end()) return Reader::kNone;
  const Reader used_by = found->second->used_by;
  left_bytes_ -= found->second->size;
  left_.erase(found->second);
  left_by_digest_.erase(found);
  return used_by;
}

void ChunkCache::Trim() {
  if (!PoolIsShort()) return;
  {
    MutexLock lock(pack_mutex_);
    packed_ = io::BufferRef();
  }
  while (PoolIsShort()) {
    Items evicted;
    MutexLock lock(mutex_);
    if (by_digest_.empty()) return;
    EvictOne(&evicted);
    lock.Unlock();
  }
}

void ChunkCache::MakeRoom(size_t buffer_count) {
  size_t given = 0;
  while (given < buffer_count * io::BufferPool::kBufferBytes) {
    Items evicted;
    MutexLock lock(mutex_);
    if (by_digest_.empty()) return;
    EvictOne(&evicted);
    given += ChargeOf(evicted.back().data);
    lock.Unlock();
  }
}

void ChunkCache::Clear() {
  {
    MutexLock lock(pack_mutex_);
    packed_ = io::BufferRef();
  }
  Items evicted;
  MutexLock lock(mutex_);
  for (Queue& queue : queues_) {
    evicted.splice(evicted.end(), queue.items);
    queue.bytes = 0;
  }
  by_digest_.clear();
  left_.clear();
  left_by_digest_.clear();
  left_bytes_ = 0;
  bytes_.store(0, std::memory_order_relaxed);
  lock.Unlock();
}

}  // namespace cairnfs::store
