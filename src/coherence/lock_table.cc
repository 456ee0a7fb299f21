#include "coherence/lock_table.h"

#include <algorithm>
#include <cassert>

#include "base/coding.h"

namespace cairnfs::coherence {
namespace {

constexpr uint8_t kLocksVersion = 2;
constexpr char kLocksKind = 'K';
// The bits of a lock's flags.
constexpr uint8_t kExclusiveBit = 1;
constexpr uint8_t kFlockBit = 2;

bool Overlap(const FileLock& a, const FileLock& b) { return a.start <= b.last && b.start <= a.last; }

bool Before(const FileLock& a, const FileLock& b) {
  if (a.owner != b.owner) return a.owner < b.owner;
  return a.start < b.start;
}

// `right` goes on where `left` ends, with nothing else that tells them apart.
bool Joins(const FileLock& left, const FileLock& right) {
  return left.owner == right.owner && left.type == right.type && left.handle == right.handle && left.pid == right.pid &&
         left.last != kLockOffsetMax && left.last + 1 == right.start;
}

}  // namespace

bool InConflict(const FileLock& held, const FileLock& wanted) {
  if (held.owner.kind != wanted.owner.kind || held.owner == wanted.owner || !Overlap(held, wanted)) return false;
  return held.type == LockType::kExclusive || wanted.type == LockType::kExclusive;
}

const FileLock* LockTable::Conflict(const FileLock& wanted) const {
  const FileLock* first = nullptr;
  for (const FileLock& lock : held_) {
    if (InConflict(lock, wanted) && (first == nullptr || lock.start < first->start)) first = &lock;
  }
  return first;
}

Error LockTable::Full() {
  return MakeError(ErrorCode::kTooLarge, "the processes of a host hold and wait for " + std::to_string(kLocksMax) +
                                             " locks of a file at most; lock larger ranges");
}

Status LockTable::Set(const FileLock& lock) {
  assert(lock.start <= lock.last && lock.last <= kLockOffsetMax && Conflict(lock) == nullptr);
  // One goes in, and one in the middle of another splits it.
  if (held_.size() + 2 > kLocksMax) return Full();
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

bool LockTable::Unset(const LockOwner& owner, uint64_t start, uint64_t last) {
  bool found = false;
  std::vector<FileLock> rest;
  rest.reserve(held_.size() + 1);
  for (const FileLock& lock : held_) {
    if (lock.owner != owner || lock.last < start || last < lock.start) {
      rest.push_back(lock);
      continue;
    }
    found = true;
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
  return found;
}

bool LockTable::UnsetHandle(uint64_t handle) {
  return std::erase_if(held_, [&](const FileLock& lock) { return lock.handle == handle; }) > 0;
}

std::optional<LockTable> LockTable::FromOrdered(std::vector<FileLock> locks) {
  for (size_t i = 1; i < locks.size(); ++i) {
    const FileLock &left = locks[i - 1], &right = locks[i];
    if (!Before(left, right) || (left.owner == right.owner && left.last >= right.start)) return std::nullopt;
  }
  LockTable table;
  table.held_ = std::move(locks);
  return table;
}

// --- the record ---

namespace {

void PutLock(Encoder& out, const FileLock& lock) {
  out.U8(static_cast<uint8_t>((lock.type == LockType::kExclusive ? kExclusiveBit : 0) |
                              (lock.owner.kind == LockKind::kFlock ? kFlockBit : 0)));
  out.U64(lock.owner.number).Varint(lock.handle).Varint(lock.pid).Varint(lock.start).Varint(lock.last);
}

// False when it is none.
bool TakeLock(Decoder& in, FileLock& lock) {
  const uint8_t flags = in.U8();
  lock.owner.number = in.U64();
  lock.handle = in.Varint();
  const uint64_t pid = in.Varint();
  lock.start = in.Varint();
  lock.last = in.Varint();
  if (!in.ok() || (flags & ~(kExclusiveBit | kFlockBit)) != 0 || pid > UINT32_MAX || lock.start > lock.last ||
      lock.last > kLockOffsetMax) {
    return false;
  }
  lock.owner.kind = (flags & kFlockBit) != 0 ? LockKind::kFlock : LockKind::kRecord;
  lock.type = (flags & kExclusiveBit) != 0 ? LockType::kExclusive : LockType::kShared;
  lock.pid = static_cast<uint32_t>(pid);
  return true;
}

}  // namespace

std::string HostLocks::Encode() const {
  Encoder out;
  out.U8(kLocksVersion).Varint(held.held().size());
  for (const FileLock& lock : held.held()) PutLock(out, lock);
  out.Varint(waiting.size());
  for (const WaitingLock& entry : waiting) {
    out.U64(entry.since);
    PutLock(out, entry.lock);
  }
  return out.Take();
}

Result<HostLocks> HostLocks::Decode(const cluster::NodeId& node, std::string_view value) {
  const Error corrupt = MakeError(ErrorCode::kCorrupt, "a record of locks does not decode");
  Decoder in(value);
  if (const uint8_t version = in.U8(); in.ok() && version != kLocksVersion) {
    return MakeError(ErrorCode::kNotSupported, "a record of locks has version " + std::to_string(version) +
                                                   "; this program knows version 2: update it");
  }
  FileLock lock;
  lock.owner.node = node;
  std::vector<FileLock> held;
  const uint64_t held_count = in.Varint();
  for (uint64_t i = 0; i < held_count; ++i) {
    if (!TakeLock(in, lock)) return corrupt;
    held.push_back(lock);
  }
  std::optional<LockTable> table = LockTable::FromOrdered(std::move(held));
  if (!table) return corrupt;
  HostLocks locks{*std::move(table), {}};
  const uint64_t waiting = in.Varint();
  for (uint64_t i = 0; i < waiting; ++i) {
    const uint64_t since = in.U64();
    if (!TakeLock(in, lock)) return corrupt;
    locks.waiting.push_back({since, lock});
  }
  if (!in.Finished()) return corrupt;
  return locks;
}

// --- all hosts' ---

Status KnownLocks::Set(std::string_view key, const std::optional<std::string>& value) {
  const std::optional<LocksPlace> place = PlaceOfLocksKey(key);
  if (!place || place->node == self_) return {};
  if (!value) {
    others_.erase(place->node);
    return {};
  }
  CAIRNFS_ASSIGN_OR_RETURN(others_[place->node], HostLocks::Decode(place->node, *value));
  return {};
}

Status KnownLocks::Load(const kv::KvRange& range) {
  if (range.revision < told_) return MakeError(ErrorCode::kConflict, "the locks have changed since they were read");
  others_.clear();
  for (const kv::KvEntry& entry : range.entries) CAIRNFS_RETURN_IF_ERROR(Set(entry.key, entry.value));
  as_of_ = range.revision;
  return {};
}

Status KnownLocks::Apply(const std::vector<kv::KvEvent>& events, uint64_t revision) {
  told_ = std::max(told_, revision);
  if (as_of_ == 0) return {};
  for (const kv::KvEvent& event : events) {
    if (event.revision > as_of_) CAIRNFS_RETURN_IF_ERROR(Set(event.key, event.value));
  }
  as_of_ = std::max(as_of_, revision);
  return {};
}

void KnownLocks::ForgetOthers() {
  others_.clear();
  as_of_ = told_ = 0;  // whatever is read from now on is younger, or the store went back to an older state
}

const FileLock* KnownLocks::Conflict(const FileLock& wanted) const {
  const FileLock* first = own.Conflict(wanted);
  for (const auto& [node, locks] : others_) {
    const FileLock* next = locks.held.Conflict(wanted);
    if (next != nullptr && (first == nullptr || next->start < first->start)) first = next;
  }
  return first;
}

bool KnownLocks::MustLetPass(const FileLock& wanted, uint64_t since) const {
  for (const auto& [node, locks] : others_) {
    for (const WaitingLock& other : locks.waiting) {
      const bool is_first = other.since < since || (other.since == since && node < self_);
      if (is_first && InConflict(other.lock, wanted) && Conflict(other.lock) == nullptr) return true;
    }
  }
  return false;
}

std::string AllLocksBegin() { return {kLocksKind}; }

std::string LocksBegin(InodeId inode) { return Encoder().U8(kLocksKind).BigEndianU64(inode.value).Take(); }

std::string LocksKey(InodeId inode, const cluster::NodeId& node) {
  return Encoder().U8(kLocksKind).BigEndianU64(inode.value).Text(node.AsKey()).Take();
}

std::optional<LocksPlace> PlaceOfLocksKey(std::string_view key) {
  Decoder in(key);
  const bool is_one = in.U8() == kLocksKind;
  const InodeId inode{in.BigEndianU64()};
  const std::optional<cluster::NodeId> node = cluster::NodeId::FromKey(in.Text(cluster::NodeId::kBytes));
  if (!is_one || !in.Finished() || !node) return std::nullopt;
  return LocksPlace{inode, *node};
}

}  // namespace cairnfs::coherence
