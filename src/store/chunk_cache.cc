#include "store/chunk_cache.h"

namespace cairnfs::store {
namespace {

constexpr size_t kPackedBytesMax = 64 * kKiB;
constexpr size_t kWrittenBytesMin = 256 * kKiB;

}  // namespace

ChunkCache::ChunkCache(io::BufferPool& pool, size_t bytes_max) : pool_(pool), bytes_max_(bytes_max) {}

std::optional<ChunkData> ChunkCache::Find(const Digest& digest) {
  MutexLock lock(mutex_);
  auto found = by_digest_.find(digest);
  if (found == by_digest_.end()) return std::nullopt;
  items_.splice(items_.begin(), items_, found->second);
  return found->second->data;
}

bool ChunkCache::Contains(const Digest& digest) {
  MutexLock lock(mutex_);
  return by_digest_.contains(digest);
}

ChunkData ChunkCache::InsertRead(const Digest& digest, ChunkData data) {
  if (data.size == 0) return data;
  if (data.size > kPackedBytesMax) {
    Insert(digest, data, data.slices.size() * io::BufferPool::kBufferBytes);
    return data;
  }
  if (auto packed = Pack(data)) {
    Insert(digest, *packed, packed->size);
    return *std::move(packed);
  }
  return data;
}

void ChunkCache::InsertWritten(const Digest& digest, std::span<const io::Slice> slices, size_t size) {
  if (size < kWrittenBytesMin || pool_.free_count() < pool_.count() / 2) return;
  ChunkData data;
  data.slices.assign(slices.begin(), slices.end());
  data.size = size;
  Insert(digest, data, size);
}

std::optional<ChunkData> ChunkCache::Pack(const ChunkData& data) {
  if (PoolIsShort()) return std::nullopt;
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

void ChunkCache::Insert(const Digest& digest, const ChunkData& data, size_t charge) {
  if (charge > bytes_max_ || PoolIsShort()) return;
  Items evicted;  // released after the lock
  MutexLock lock(mutex_);
  if (by_digest_.contains(digest)) return;
  while (bytes_.load(std::memory_order_relaxed) + charge > bytes_max_) EvictOldest(&evicted);
  items_.push_front(Item{digest, data, charge});
  by_digest_.emplace(digest, items_.begin());
  bytes_.fetch_add(charge, std::memory_order_relaxed);
  lock.Unlock();
}

void ChunkCache::EvictOldest(Items* evicted) {
  auto oldest = std::prev(items_.end());
  bytes_.fetch_sub(oldest->charge, std::memory_order_relaxed);
  by_digest_.erase(oldest->digest);
  evicted->splice(evicted->end(), items_, oldest);
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
    if (items_.empty()) return;
    EvictOldest(&evicted);
    lock.Unlock();
  }
}

void ChunkCache::MakeRoom(size_t buffer_count) {
  size_t given = 0;
  while (given < buffer_count * io::BufferPool::kBufferBytes) {
    Items evicted;
    MutexLock lock(mutex_);
    if (items_.empty()) return;
    EvictOldest(&evicted);
    given += evicted.back().charge;
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
  evicted.swap(items_);
  by_digest_.clear();
  bytes_.store(0, std::memory_order_relaxed);
  lock.Unlock();
}

}  // namespace cairnfs::store
