#include "kv/read_cache.h"

namespace cairnfs::kv {
namespace {

// Larger values, as recipes of many chunks are, are read from the engine: they would drive out hundreds of others.
constexpr size_t kValueBytesMax = 4096;
// Memory beside the bytes of key and value: nodes of a list and of a hash table with its bucket, and their allocations.
constexpr size_t kItemOverheadBytes = 192;

}  // namespace

ReadCache::ReadCache(size_t bytes_max) : shard_bytes_max_(bytes_max / std::tuple_size_v<decltype(shards_)>) {}

size_t ReadCache::BytesOf(const Item& item) {
  return item.key.size() + (item.known.value ? item.known.value->size() : 0) + kItemOverheadBytes;
}

ReadCache::Shard& ReadCache::ShardOf(std::string_view key) {
  // The hash tables take the low bits.
  return shards_[(std::hash<std::string_view>()(key) >> 48) % shards_.size()];
}

std::optional<ReadCache::Known> ReadCache::Find(std::string_view key) {
  Shard& shard = ShardOf(key);
  MutexLock lock(shard.mutex);
  auto place = shard.places.find(key);
  if (place == shard.places.end()) return std::nullopt;
  shard.items.splice(shard.items.begin(), shard.items, place->second);
  return place->second->known;
}

std::optional<uint64_t> ReadCache::FindRevision(std::string_view key) {
  Shard& shard = ShardOf(key);
  MutexLock lock(shard.mutex);
  auto place = shard.places.find(key);
  if (place == shard.places.end()) return std::nullopt;
  return place->second->known.revision;
}

void ReadCache::Insert(std::string_view key, const Known& known, uint64_t epoch) {
  Shard& shard = ShardOf(key);
  MutexLock lock(shard.mutex);
  // An epoch that begins after this look updates the key after this insert, because the shard is locked.
  if (epoch == epoch_.load(std::memory_order_acquire)) Put(shard, key, known);
}

void ReadCache::Update(std::string_view key, uint64_t revision, const std::optional<std::string>& value) {
  Shard& shard = ShardOf(key);
  MutexLock lock(shard.mutex);
  if (value) {
    Put(shard, key, {revision, value});
  } else {
    Erase(shard, key);
  }
}

void ReadCache::Put(Shard& shard, std::string_view key, const Known& known) {
  Erase(shard, key);
  if (known.value && known.value->size() > kValueBytesMax) return;
  shard.items.push_front({std::string(key), known});
  shard.places.emplace(shard.items.front().key, shard.items.begin());
  shard.bytes += BytesOf(shard.items.front());
  while (shard.bytes > shard_bytes_max_ && !shard.items.empty()) Erase(shard, shard.items.back().key);
}

void ReadCache::Erase(Shard& shard, std::string_view key) {
  auto place = shard.places.find(key);
  if (place == shard.places.end()) return;
  const Items::iterator item = place->second;
  shard.bytes -= BytesOf(*item);
  shard.places.erase(place);
  shard.items.erase(item);
}

}  // namespace cairnfs::kv
