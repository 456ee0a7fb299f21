// ReadCache: values of single keys of a KvEngine, and which keys are absent. A look-up in RocksDB's memtable costs
// microseconds, and an operation on a name asks for the same few keys as the one before it.
//
// Nothing stale is found. A value that a thread read comes with the epoch that the cache had before the read, and each
// change of the engine begins a new epoch before it tells the cache what it changed. The user's part: no key is looked
// for here while it is being changed, until Update() has been told of it.
//
// All functions may be called from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/thread_annotations.h"

namespace cairnfs::kv {

class ReadCache {
 public:
  struct Known {
    uint64_t revision = 0;             // 0: the key is absent
    std::optional<std::string> value;  // nullopt: the key is absent
  };

  // `bytes_max`: memory that it takes at most, roughly.
  explicit ReadCache(size_t bytes_max);

  std::optional<Known> Find(std::string_view key);
  std::optional<uint64_t> FindRevision(std::string_view key);  // 0: absent

  uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }
  // Adds what the engine said, to a caller that took `epoch` before it asked. Does nothing when that epoch is over.
  void Insert(std::string_view key, const Known& known, uint64_t epoch);

  // The engine has changed: BeginEpoch, and then Update for each key that did.
  void BeginEpoch() { epoch_.fetch_add(1, std::memory_order_acq_rel); }
  // A key that is gone is forgotten, since few ask for it again.
  void Update(std::string_view key, uint64_t revision, const std::optional<std::string>& value);

 private:
  struct Item {
    std::string key;
    Known known;
  };
  using Items = std::list<Item>;
  struct Shard {
    Mutex mutex;
    Items items GUARDED_BY(mutex);                                                   // the one used last is in front
    std::unordered_map<std::string_view, Items::iterator> places GUARDED_BY(mutex);  // keys lie in the items
    size_t bytes GUARDED_BY(mutex) = 0;
  };

  static size_t BytesOf(const Item& item);
  Shard& ShardOf(std::string_view key);
  void Put(Shard& shard, std::string_view key, const Known& known) REQUIRES_LOCK(shard.mutex);
  void Erase(Shard& shard, std::string_view key) REQUIRES_LOCK(shard.mutex);

  const size_t shard_bytes_max_;
  std::atomic<uint64_t> epoch_{0};
  std::array<Shard, 16> shards_;
};

}  // namespace cairnfs::kv
