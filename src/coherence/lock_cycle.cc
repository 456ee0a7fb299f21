#include "coherence/lock_cycle.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace cairnfs::coherence {
namespace {

struct HostRecord {
  const kv::KvEntry* entry;
  InodeId inode;
  HostLocks locks;
};
struct RecordWait {
  const kv::KvEntry* entry;
  InodeId inode;
  FileLock lock;
};
// An owner, and how the search came to it.
struct Visit {
  LockOwner owner;
  std::optional<size_t> from;  // of whoever waits for it, among the visits
  const kv::KvEntry *waits_in = nullptr, *holds_in = nullptr;
};

class CycleSearch {
 public:
  explicit CycleSearch(const std::vector<kv::KvEntry>& records) {
    for (const kv::KvEntry& entry : records) Add(entry);
  }

  LockCycle Find(InodeId inode, const FileLock& wanted) {
    visits_.push_back({wanted.owner, std::nullopt});
    seen_.insert(wanted.owner);
    for (size_t at = 0; at < visits_.size(); ++at) {
      const auto [first, last] = waits_.equal_range(visits_[at].owner);
      for (auto wait = first; wait != last; ++wait) {
        const RecordWait& each = wait->second;
        // The owner's other waits are of other threads, which were looked at when they began.
        if (at == 0 && (each.inode != inode || each.lock != wanted)) continue;
        if (VisitHolders(at, each, wanted.owner)) return Collect();
      }
    }
    return {};
  }

 private:
  void Add(const kv::KvEntry& entry) {
    const std::optional<LocksPlace> place = PlaceOfLocksKey(entry.key);
    if (!place) return;
    Result<HostLocks> locks = HostLocks::Decode(place->node, entry.value);
    if (!locks.ok()) return;
    for (const WaitingLock& each : locks->waiting) {
      if (each.lock.owner.kind != LockKind::kRecord) continue;
      waits_.emplace(each.lock.owner, RecordWait{&entry, place->inode, each.lock});
    }
    records_.push_back({&entry, place->inode, *std::move(locks)});
  }

  // True when the owner that the cycle is to lead back to is one of them: it is the last visit then.
  bool VisitHolders(size_t from, const RecordWait& wait, const LockOwner& back_to) {
    auto record = std::lower_bound(records_.begin(), records_.end(), wait.inode,
                                   [](const HostRecord& each, InodeId inode) { return each.inode < inode; });
    for (; record != records_.end() && record->inode == wait.inode; ++record) {
      for (const FileLock& held : record->locks.held.held()) {
        if (!InConflict(held, wait.lock)) continue;
        const bool is_new = seen_.insert(held.owner).second;
        if (is_new || held.owner == back_to) visits_.push_back({held.owner, from, wait.entry, record->entry});
        if (held.owner == back_to) return true;
      }
    }
    return false;
  }

  LockCycle Collect() const {
    std::set<const kv::KvEntry*> entries;
    for (const Visit* visit = &visits_.back(); visit->from; visit = &visits_[*visit->from]) {
      entries.insert(visit->waits_in);
      entries.insert(visit->holds_in);
    }
    if (entries.size() > kLockCycleRecordsMax) return {};
    LockCycle cycle;
    for (const kv::KvEntry* entry : entries) cycle.push_back({entry->key, entry->revision});
    return cycle;
  }

  std::vector<HostRecord> records_;  // by inode
  std::multimap<LockOwner, RecordWait> waits_;
  std::vector<Visit> visits_;  // in the order of their distance
  std::set<LockOwner> seen_;
};

}  // namespace

LockCycle FindLockCycle(const std::vector<kv::KvEntry>& records, InodeId inode, const FileLock& wanted) {
  return CycleSearch(records).Find(inode, wanted);
}

}  // namespace cairnfs::coherence
