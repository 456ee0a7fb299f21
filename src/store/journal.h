// Journal: the bytes of small chunks in the node's KvEngine, from the sync that made them durable until the segment
// that has them is synced. docs/formats/chunk-index.md, "Small chunks".
//
// Without it a small sync would wait for the disk twice: for the segment, then for the engine, which names the chunks.
// With the bytes in the engine it waits once.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/types.h"
#include "kv/engine.h"

namespace cairnfs::store {

// One thread at a time, but for bytes().
class Journal {
 public:
  explicit Journal(kv::KvEngine& engine) : engine_(engine) {}

  struct Entry {
    Digest digest;
    std::string bytes;
  };
  // Reads what an earlier process has left. It stays in the engine until it is held.
  Result<std::vector<Entry>> Load();
  // Takes over an entry that Load gave: the next sync of the segments covers it too.
  void Hold(const Entry& entry);
  // Unsynced.
  Status Write(std::vector<Entry> entries);
  // Deletes all from the engine, unsynced.
  Status Drop();
  // The deletions that Drop would write, for the caller's own batch. Call Forget once that has succeeded.
  std::vector<kv::EngineWrite> Deletions() const;
  void Forget();

  bool Holds(const Digest& digest) const { return held_.contains(digest); }
  size_t count() const { return held_.size(); }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }  // any thread

 private:
  kv::KvEngine& engine_;
  std::unordered_set<Digest, DigestHash> held_;
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace cairnfs::store
