// Journal: the bytes of small chunks in the node's KvEngine, from the sync that made them durable until the segment
// that has them is synced. docs/formats/chunk-index.md, "Small chunks".
//
// A sync of little would cost two writes that wait for the disk, one after the other: the segment, and then the engine,
// for what names the chunks. With the bytes in the engine it is one.
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
  // Reads what an earlier life of the store has left. It stays in the engine until it is held.
  Result<std::vector<Entry>> Load();
  // Of what was loaded: the next sync of the segments covers it too.
  void Hold(const Entry& entry);
  // Unsynced.
  Status Write(std::vector<Entry> entries);
  // Takes all out of the engine, unsynced.
  Status Drop();
  // The same, for a batch that somebody else writes; Forget once that has succeeded.
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
