// ChunkMarks: what memory knows of the chunks of one shard of the index: which are pending, pinned, recorded by a
// collection, being deleted by it, or damaged. chunk_index.h says what the marks are for.
#pragma once

#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/thread_annotations.h"
#include "store/chunk_index_format.h"

namespace cairnfs::store {

struct ChunkMarks {
  static constexpr size_t kDamagedMax = 1024;

  struct Pending {
    bool putting = false;  // by some thread
    bool stored = false;   // at `location`; while it is being put again, the damaged copy
    Location location;
    std::optional<uint32_t> replaced_bytes;
  };
  Mutex mutex;
  CondVar changed;
  std::unordered_map<Digest, Pending, DigestHash> pending GUARDED_BY(mutex);
  std::unordered_map<Digest, uint32_t, DigestHash> pins GUARDED_BY(mutex);
  std::unordered_set<Digest, DigestHash> recorded GUARDED_BY(mutex);
  std::unordered_set<Digest, DigestHash> dying GUARDED_BY(mutex);
  std::unordered_map<Digest, Location, DigestHash> damaged GUARDED_BY(mutex);
  bool recording GUARDED_BY(mutex) = false;

  void WaitWhileDying(const Digest& digest) REQUIRES_LOCK(mutex) {
    while (dying.contains(digest)) changed.Wait(mutex);
  }
  void Record(const Digest& digest) REQUIRES_LOCK(mutex) {
    if (recording) recorded.insert(digest);
  }
  void PinAndRecord(const Digest& digest) REQUIRES_LOCK(mutex) {
    ++pins[digest];
    Record(digest);
  }
  void DropPin(const Digest& digest) REQUIRES_LOCK(mutex) {
    auto pin = pins.find(digest);
    if (pin != pins.end() && --pin->second == 0) pins.erase(pin);
  }
  bool IsInUse(const Digest& digest) const REQUIRES_LOCK(mutex) {
    return pending.contains(digest) || pins.contains(digest) || recorded.contains(digest);
  }
  bool IsDamaged(const Digest& digest, const Location& location) const REQUIRES_LOCK(mutex) {
    auto found = damaged.find(digest);
    return found != damaged.end() && found->second == location;
  }
  // Forgotten when it is replaced, and beyond a bound.
  void NoteDamaged(const Digest& digest, const Location& location) REQUIRES_LOCK(mutex) {
    if (damaged.size() < kDamagedMax || damaged.contains(digest)) damaged[digest] = location;
  }
  // The chunk is in the engine. If its copy is damaged, a new copy may be pending already, or about to be put.
  void ForgetPending(const Digest& digest, const Location& location) REQUIRES_LOCK(mutex) {
    auto found = pending.find(digest);
    if (found == pending.end() || !found->second.stored || found->second.location != location) return;
    found->second.stored = false;
    if (!found->second.putting) pending.erase(found);
  }
};

}  // namespace cairnfs::store
