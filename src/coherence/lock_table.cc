#include "coherence/lock_table.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/coding.h"

namespace cairnfs::coherence {
namespace {

constexpr uint8_t kLocksVersion = 1;
constexpr char kLocksKind = 'K';
// The bits of a lock's flags.
constexpr uint8_t kExclusiveBit = 1;
constexpr uint8_t kFlockBit = 2;

bool Overlap(const FileLock& a, const FileLock& b) { return a.start <= b.last && b.start <= a.last; }

bool InConflict(const FileLock& held, const FileLock& wanted) {
  if (held.owner.kind != wanted.owner.kind || held.owner == wanted.owner || !Overlap(held, wanted)) return false;
  return held.type == LockType::kExclusive || wanted.type == LockType::kExclusive;
}

bool Before(const FileLock& a, const FileLock& b) {
  if (a.owner != b.owner) return a.owner < b.owner;
  return a.start < b.start;
}

// `right` goes on where `left` ends, with nothing else that tells them apart.
bool Joins(const FileLock& left, const FileLock& right) {
  return left.owner == right.owner && left.type == right.type && left.handle == right.handle && left.pid == right.pid &&
         left.last != kLockOffsetMax && left.last + 1 == right.start;
}

Error Full() {
  return MakeError(ErrorCode::kTooLarge, "more than " + std::to_string(LockTable::kLocksMax) + " locks on one file");
}

}  // namespace

const FileLock* LockTable::Conflict(const FileLock& wanted) const {
  const FileLock* first = nullptr;
  for (const FileLock& lock : held_) {
    if (InConflict(lock, wanted) && (first == nullptr || lock.start < first->start)) first = &lock;
  }
  return first;
}

std::vector<const FileLock*> LockTable::Conflicts(const FileLock& wanted) const {
  std::vector<const FileLock*> found;
  for (const FileLock& lock : held_) {
    if (InConflict(lock, wanted)) found.push_back(&lock);
  }
  return found;
}

bool LockTable::Covers(const FileLock& wanted) const {
  uint64_t next = wanted.start;
  for (const FileLock& lock : held_) {  // of one owner: in the order of start
    if (lock.owner != wanted.owner || lock.last < next) continue;
    if (lock.start > next || (lock.type == LockType::kShared && wanted.type == LockType::kExclusive)) return false;
    if (lock.last >= wanted.last) return true;
    next = lock.last + 1;
  }
  return false;
}

Status LockTable::Set(const FileLock& lock) {
  if (lock.start > lock.last || lock.last > kLockOffsetMax || Conflict(lock) != nullptr) std::abort();
  // One goes in, and one in the middle of another splits it.
  if (held_.size() + waiting_.size() + 2 > kLocksMax) return Full();
  Unset(lock.owner, lock.start, lock.last);
  auto at = held_.insert(std::lower_bound(held_.begin(), held_.end(), lock, Before), lock);
  if (auto next = at + 1; next != held_.end() && Joins(*at, *next)) {
    at->last = next->last;
    held_.erase(next);
  }
  if (at != held_.begin() && Joins(*(at - 1), *at)) {
    (at - 1)->last = at->last;
    held_.erase(at);
  }
  return {};
}

void LockTable::Unset(const LockOwner& owner, uint64_t start, uint64_t last) {
  std::vector<FileLock> rest;
  rest.reserve(held_.size() + 1);
  for (const FileLock& lock : held_) {
    if (lock.owner != owner || lock.last < start || last < lock.start) {
      rest.push_back(lock);
      continue;
    }
    if (lock.start < start) {
      rest.push_back(lock);
      rest.back().last = start - 1;
    }
    if (lock.last > last) {
      rest.push_back(lock);
      rest.back().start = last + 1;
    }
  }
  held_ = std::move(rest);
}

void LockTable::UnsetHandle(const LockSession& session, uint64_t handle) {
  std::erase_if(held_, [&](const FileLock& lock) { return lock.owner.session == session && lock.handle == handle; });
}

Status LockTable::AddWaiting(WaitingLock waiting) {
  if (held_.size() + waiting_.size() >= kLocksMax) return Full();
  waiting_.push_back(std::move(waiting));
  return {};
}

const WaitingLock* LockTable::FindWaiting(const LockSession& session, uint64_t ticket) const {
  for (const WaitingLock& waiting : waiting_) {
    if (waiting.ticket == ticket && waiting.lock.owner.session == session) return &waiting;
  }
  return nullptr;
}

void LockTable::RemoveWaiting(const LockSession& session, uint64_t ticket) {
  std::erase_if(waiting_, [&](const WaitingLock& waiting) {
    return waiting.ticket == ticket && waiting.lock.owner.session == session;
  });
}

std::vector<WaitingLock> LockTable::GrantWaiting() {
  std::vector<WaitingLock> granted;
  for (size_t i = 0; i < waiting_.size();) {
    const WaitingLock wanted = waiting_[i];
    if (Conflict(wanted.lock) != nullptr) {
      ++i;
      continue;
    }
    // Its own place is room for it, or nobody would be let into a full table that nobody holds a lock of any more.
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
    if (!Set(wanted.lock).ok()) {
      // It would split a lock: room for that comes with the next entry that goes.
      waiting_.insert(waiting_.begin() + static_cast<ptrdiff_t>(i), wanted);
      ++i;
      continue;
    }
    granted.push_back(wanted);
    // An owner's exclusive lock that became a shared one lets those before in.
    i = 0;
  }
  return granted;
}

std::vector<LockSession> LockTable::Sessions() const {
  std::vector<LockSession> sessions;
  for (const FileLock& lock : held_) sessions.push_back(lock.owner.session);
  for (const WaitingLock& waiting : waiting_) sessions.push_back(waiting.lock.owner.session);
  std::sort(sessions.begin(), sessions.end());
  sessions.erase(std::unique(sessions.begin(), sessions.end()), sessions.end());
  return sessions;
}

void LockTable::RemoveSession(const LockSession& session) {
  std::erase_if(held_, [&](const FileLock& lock) { return lock.owner.session == session; });
  std::erase_if(waiting_, [&](const WaitingLock& waiting) { return waiting.lock.owner.session == session; });
}

std::string LockTable::Encode() const {
  const std::vector<LockSession> sessions = Sessions();
  Encoder out;
  auto put_lock = [&](const FileLock& lock) {
    auto session = std::lower_bound(sessions.begin(), sessions.end(), lock.owner.session);
    out.Varint(static_cast<uint64_t>(session - sessions.begin()));
    out.U8(static_cast<uint8_t>((lock.type == LockType::kExclusive ? kExclusiveBit : 0) |
                                (lock.owner.kind == LockKind::kFlock ? kFlockBit : 0)));
    out.U64(lock.owner.number).Varint(lock.handle).Varint(lock.pid).Varint(lock.start).Varint(lock.last);
  };
  out.U8(kLocksVersion).Varint(sessions.size());
  for (const LockSession& session : sessions) out.Text(session.node.AsKey()).U64(session.revision);
  out.Varint(held_.size());
  for (const FileLock& lock : held_) put_lock(lock);
  out.Varint(waiting_.size());
  for (const WaitingLock& waiting : waiting_) {
    out.U64(waiting.ticket);
    put_lock(waiting.lock);
  }
  return out.Take();
}

namespace {

std::vector<LockSession> DecodeSessions(Decoder& in) {
  std::vector<LockSession> sessions;
  const uint64_t count = in.Varint();
  for (uint64_t i = 0; i < count && in.ok(); ++i) {
    LockSession session;
    const std::string_view node = in.Text(cluster::NodeId::kBytes);
    if (in.ok()) std::memcpy(session.node.bytes.data(), node.data(), node.size());
    session.revision = in.U64();
    sessions.push_back(session);
  }
  return sessions;
}

// False when it is none.
bool DecodeLock(Decoder& in, const std::vector<LockSession>& sessions, FileLock& lock) {
  const uint64_t session = in.Varint();
  const uint8_t flags = in.U8();
  lock.owner.number = in.U64();
  lock.handle = in.Varint();
  const uint64_t pid = in.Varint();
  lock.start = in.Varint();
  lock.last = in.Varint();
  if (!in.ok() || session >= sessions.size() || (flags & ~(kExclusiveBit | kFlockBit)) != 0 || pid > UINT32_MAX ||
      lock.start > lock.last || lock.last > kLockOffsetMax) {
    return false;
  }
  lock.owner.session = sessions[session];
  lock.owner.kind = (flags & kFlockBit) != 0 ? LockKind::kFlock : LockKind::kRecord;
  lock.type = (flags & kExclusiveBit) != 0 ? LockType::kExclusive : LockType::kShared;
  lock.pid = static_cast<uint32_t>(pid);
  return true;
}

// As the invariants of the table have it, but for conflicts.
bool InOrder(const FileLock& left, const FileLock& right) {
  return Before(left, right) && (left.owner != right.owner || left.last < right.start);
}

}  // namespace

Result<LockTable> LockTable::Decode(std::string_view value) {
  const Error corrupt = MakeError(ErrorCode::kCorrupt, "a record of locks does not decode");
  Decoder in(value);
  if (const uint8_t version = in.U8(); in.ok() && version != kLocksVersion) {
    return MakeError(ErrorCode::kNotSupported, "a record of locks has version " + std::to_string(version) +
                                                   "; this program knows version 1: update it");
  }
  const std::vector<LockSession> sessions = DecodeSessions(in);
  LockTable table;
  const uint64_t held = in.Varint();
  for (uint64_t i = 0; i < held; ++i) {
    FileLock lock;
    if (!DecodeLock(in, sessions, lock)) return corrupt;
    if (!table.held_.empty() && !InOrder(table.held_.back(), lock)) return corrupt;
    table.held_.push_back(lock);
  }
  const uint64_t waiting = in.Varint();
  for (uint64_t i = 0; i < waiting; ++i) {
    WaitingLock entry;
    entry.ticket = in.U64();
    if (!DecodeLock(in, sessions, entry.lock)) return corrupt;
    table.waiting_.push_back(entry);
  }
  if (!in.Finished()) return corrupt;
  return table;
}

std::string LocksKey(InodeId inode) { return Encoder().U8(kLocksKind).BigEndianU64(inode.value).Take(); }

std::string LocksGuardKey(const cluster::NodeId& node) { return Encoder().U8(kLocksKind).Text(node.AsKey()).Take(); }

std::string LocksPrefix() { return std::string(1, kLocksKind); }

std::optional<InodeId> InodeOfLocksKey(std::string_view key) {
  Decoder in(key);
  if (in.U8() != kLocksKind) return std::nullopt;
  const InodeId inode{in.BigEndianU64()};
  if (!in.Finished()) return std::nullopt;
  return inode;
}

}  // namespace cairnfs::coherence
