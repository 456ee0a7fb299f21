// The locks of one inode: what a host has of them, and how that stands in the store. docs/formats/locks.md has the
// bytes.
//
// Two kinds live side by side and do not conflict with each other, as on Linux: record locks (POSIX and OFD, on ranges
// of bytes) and flocks (on the whole file). Plain values: no locking, no store.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "cluster/types.h"
#include "kv/shared_store.h"

namespace cairnfs::coherence {

inline constexpr uint64_t kLockOffsetMax = 0x7fff'ffff'ffff'ffff;  // the last byte of a lock "to the end"

enum class LockKind : uint8_t {
  kRecord,  // POSIX and OFD: the kernel does not tell which
  kFlock,
};
enum class LockType : uint8_t { kShared, kExclusive };

struct LockOwner {
  cluster::NodeId node;
  LockKind kind = LockKind::kRecord;
  uint64_t number = 0;  // unique within the node's session and kind
  auto operator<=>(const LockOwner&) const = default;
};

struct FileLock {
  LockOwner owner;
  LockType type = LockType::kShared;
  uint64_t start = 0, last = kLockOffsetMax;  // the first and the last byte; flocks: the whole
  uint64_t handle = 0;                        // of its node: the open file through which it was taken
  uint32_t pid = 0;                           // on its node: who took it
  bool operator==(const FileLock&) const = default;
};

// Whether the two cannot be held at once.
bool InConflict(const FileLock& held, const FileLock& wanted);

// What is held. Invariants: ordered by owner and start; the locks of one owner do not overlap; no two of different
// owners conflict.
class LockTable {
 public:
  static constexpr size_t kLocksMax = 8192;  // that a host holds and waits for
  static Error Full();                       // kTooLarge

  bool empty() const { return held_.empty(); }
  const std::vector<FileLock>& held() const { return held_; }
  bool operator==(const LockTable&) const = default;

  // The lock that stands in the way of `wanted`, the one with the least start; null when none does.
  const FileLock* Conflict(const FileLock& wanted) const;

  // In place of what its owner held in its range. kTooLarge when the table is full.
  // REQUIRES: !Conflict(lock); start <= last <= kLockOffsetMax.
  Status Set(const FileLock& lock);
  // Frees the owner's locks in [start, last]; splits those that reach beyond. True when there were any.
  bool Unset(const LockOwner& owner, uint64_t start, uint64_t last);
  bool UnsetHandle(uint64_t handle);

  // nullopt: out of order, or those of one owner overlap. REQUIRES (unchecked, as it would
  // take a look at each pair): those of different owners do not conflict.
  static std::optional<LockTable> FromOrdered(std::vector<FileLock> locks);

 private:
  std::vector<FileLock> held_;
};

struct WaitingLock {
  uint64_t since = 0;  // the store's revision when it began: who waits for less long lets it pass
  FileLock lock;
  bool operator==(const WaitingLock&) const = default;
};

// The record of one host.
struct HostLocks {
  LockTable held;
  std::vector<WaitingLock> waiting;
  bool operator==(const HostLocks&) const = default;

  bool empty() const { return held.empty() && waiting.empty(); }
  std::string Encode() const;
  static Result<HostLocks> Decode(const cluster::NodeId& node, std::string_view value);
};

// What a host knows of an inode's locks. Its own are the truth, of which the store has a copy; the others' are as the
// store had them at a revision.
class KnownLocks {
 public:
  explicit KnownLocks(const cluster::NodeId& self) : self_(self) {}

  LockTable own;
  uint64_t as_of() const { return as_of_; }  // 0: none of the others' are known

  // The range of the inode's keys, as it was read. kConflict: a watch has told of later changes, read it again.
  Status Load(const kv::KvRange& range);
  // All changes of that range up to `revision` that Apply or Load have not told of.
  Status Apply(const std::vector<kv::KvEvent>& events, uint64_t revision);
  // Some changes will not be told: nothing is known of the others until the next Load.
  void ForgetOthers();

  // As LockTable::Conflict, of all hosts' locks.
  const FileLock* Conflict(const FileLock& wanted) const;
  // Whether a process of another host waits for longer, could have its lock now, and `wanted` would be in its way.
  bool MustLetPass(const FileLock& wanted, uint64_t since) const;

 private:
  Status Set(std::string_view key, const std::optional<std::string>& value);

  cluster::NodeId self_;
  std::map<cluster::NodeId, HostLocks> others_;
  uint64_t as_of_ = 0;
  uint64_t told_ = 0;  // the last revision that Apply was told of
};

// One key for each host with locks in the inode, all in the range of LocksBegin, and all inodes' in that of
// AllLocksBegin.
std::string AllLocksBegin();
std::string LocksBegin(InodeId inode);
std::string LocksKey(InodeId inode, const cluster::NodeId& node);

struct LocksPlace {
  InodeId inode;
  cluster::NodeId node;
};
// nullopt: it is no such key.
std::optional<LocksPlace> PlaceOfLocksKey(std::string_view key);

}  // namespace cairnfs::coherence
