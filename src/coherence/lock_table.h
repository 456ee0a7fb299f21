// The locks of one inode, as the record `K` holds them: docs/formats/locks.md has the bytes.
//
// Two kinds live side by side and do not conflict with each other, as on Linux: record locks (POSIX and OFD, on ranges
// of bytes) and flocks (on the whole file). Who waits for a lock stands in the record too, in order: whoever frees a
// lock hands it to the first that it suits, in the same transaction, so a waiter needs no further round trip.
//
// Plain values: no locking, no store. Invariants: the held locks are ordered by owner and start; those of one owner do
// not overlap; no two of different owners conflict.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "cluster/types.h"

namespace cairnfs::coherence {

inline constexpr uint64_t kLockOffsetMax = 0x7fff'ffff'ffff'ffff;  // the last byte of a lock "to the end"

enum class LockKind : uint8_t {
  kRecord,  // POSIX and OFD: the kernel does not tell which
  kFlock,
};
enum class LockType : uint8_t { kShared, kExclusive };

// A session of a node: the revision that made its session key. Later sessions of the same node are others.
struct LockSession {
  cluster::NodeId node;
  uint64_t revision = 0;
  auto operator<=>(const LockSession&) const = default;
};

struct LockOwner {
  LockSession session;
  LockKind kind = LockKind::kRecord;
  uint64_t number = 0;  // unique within the session and kind
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

struct WaitingLock {
  uint64_t ticket = 0;  // unique within the session
  FileLock lock;
  bool operator==(const WaitingLock&) const = default;
};

class LockTable {
 public:
  // Held and waiting together. Past it a record would outgrow a transaction.
  static constexpr size_t kLocksMax = 8192;

  bool empty() const { return held_.empty() && waiting_.empty(); }
  const std::vector<FileLock>& held() const { return held_; }
  const std::vector<WaitingLock>& waiting() const { return waiting_; }
  bool operator==(const LockTable&) const = default;

  // The held lock that stands in the way of `wanted`, the one with the least start; null when none does.
  const FileLock* Conflict(const FileLock& wanted) const;
  // All of them.
  std::vector<const FileLock*> Conflicts(const FileLock& wanted) const;
  // Whether its owner holds all of `wanted`'s range, with its type or a stronger one.
  bool Covers(const FileLock& wanted) const;

  // In place of what its owner held in its range. kTooLarge when the table is full.
  // REQUIRES: !Conflict(lock); start <= last <= kLockOffsetMax.
  Status Set(const FileLock& lock);
  // Frees the owner's locks in [start, last]; splits those that reach beyond.
  void Unset(const LockOwner& owner, uint64_t start, uint64_t last);
  void UnsetHandle(const LockSession& session, uint64_t handle);

  // Behind those that wait already. kTooLarge when the table is full.
  Status AddWaiting(WaitingLock waiting);
  const WaitingLock* FindWaiting(const LockSession& session, uint64_t ticket) const;
  void RemoveWaiting(const LockSession& session, uint64_t ticket);
  // Gives those that wait what they wait for, in order, as far as nothing held stands in the way. One that waits does
  // not stand in the way of another: with open files of one process that share a lock, it could for ever. Returns what
  // was given.
  std::vector<WaitingLock> GrantWaiting();

  // All sessions that have a lock or wait for one, in order.
  std::vector<LockSession> Sessions() const;
  // Takes away what a session held and waited for. Grants nothing.
  void RemoveSession(const LockSession& session);

  std::string Encode() const;
  static Result<LockTable> Decode(std::string_view value);

 private:
  std::vector<FileLock> held_;
  std::vector<WaitingLock> waiting_;
};

std::string LocksKey(InodeId inode);
std::string LocksPrefix();
// Of a host's session: docs/formats/locks.md.
std::string LocksGuardKey(const cluster::NodeId& node);
// nullopt: no key of an inode's locks.
std::optional<InodeId> InodeOfLocksKey(std::string_view key);

}  // namespace cairnfs::coherence
