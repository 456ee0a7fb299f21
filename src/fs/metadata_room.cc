#include "fs/metadata_room.h"

#include <algorithm>

#include "base/clock.h"
#include "base/coding.h"
#include "fs/scan.h"
#include "meta/records.h"

namespace cairnfs::fs {
namespace {

// From one count to the next: so many times what it took.
constexpr int kPausePerCount = 20;
constexpr std::chrono::nanoseconds kRoomPauseMin = std::chrono::seconds(1);

constexpr char kKept[] = "what is left of the disk is kept for removing files";

// Of the inodes in a scan of their records, in the order of their numbers: where one owner's begin.
using OwnerRuns = std::map<uint64_t, uint32_t>;

uint32_t OwnerOf(const OwnerRuns& runs, uint64_t inode) {
  auto next = runs.upper_bound(inode);
  return next == runs.begin() ? 0 : std::prev(next)->second;
}

// Of a key that begins with a letter and the number of an inode.
uint64_t InodeIn(std::string_view key) { return Decoder(key.substr(std::min<size_t>(1, key.size()))).BigEndianU64(); }

// The file that the entry belongs to. A name belongs to what it names: in a directory where everybody may write that is
// whoever made it.
uint64_t InodeOf(const kv::KvEntry& entry) {
  if (!entry.key.starts_with('E')) return InodeIn(entry.key);
  const auto record = meta::DentryRecord::Decode(entry.value);
  return record.ok() ? record->inode.value : InodeIn(entry.key);  // a check tells of one that is damaged
}

Error NoRoom(const std::string& why) { return MakeError(ErrorCode::kNoSpace, why); }

}  // namespace

Result<std::vector<MetadataOwner>> CountByOwner(const Context& context, kv::KvStore& kv) {
  std::map<uint32_t, MetadataOwner> owners;
  OwnerRuns runs;
  CAIRNFS_RETURN_IF_ERROR(ScanPrefix(context, kv, "I", [&](const kv::KvEntry& entry) {
    auto record = meta::InodeRecord::Decode(entry.value);
    if (!record.ok()) return true;  // a check tells of it
    if (runs.empty() || runs.rbegin()->second != record->uid) runs[InodeIn(entry.key)] = record->uid;
    owners[record->uid].bytes += entry.key.size() + entry.value.size();
    ++owners[record->uid].inode_count;
    return true;
  }));
  for (const char* prefix : {"D", "E", "X"}) {
    CAIRNFS_RETURN_IF_ERROR(ScanPrefix(context, kv, prefix, [&](const kv::KvEntry& entry) {
      MetadataOwner& owner = owners[OwnerOf(runs, InodeOf(entry))];
      const uint64_t bytes = entry.key.size() + entry.value.size();
      owner.bytes += bytes;
      if (*prefix == 'X') owner.xattr_bytes += bytes;
      return true;
    }));
  }
  std::vector<MetadataOwner> result;
  for (auto& [uid, owner] : owners) {
    owner.uid = uid;
    result.push_back(owner);
  }
  std::stable_sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return result;
}

MetadataRoom::MetadataRoom(kv::KvStore& kv, store::LocalChunkStore& chunks, TaskQueue& waiters, Context until_stop)
    : kv_(kv), chunks_(chunks), waiters_(waiters), until_stop_(std::move(until_stop)), own_uid_(geteuid()) {}

uint64_t MetadataRoom::BytesForUsers(uint64_t unwritten_bytes) const {
  const uint64_t room = chunks_.MetadataRoom(unwritten_bytes);
  const uint64_t kept = chunks_.reserve_bytes() / 5;
  return room > kept ? room - kept : 0;
}

Status MetadataRoom::Judge(NameChange change, uint32_t uid, uint64_t unwritten_bytes) {
  if (change == NameChange::kMakes) return JudgeMaker(uid, chunks_.MetadataRoom(unwritten_bytes));
  if (change != NameChange::kAlters) return {};
  if (chunks_.MetadataRoom(unwritten_bytes, store::Leaves::kTenth) == 0) return NoRoom(kKept);
  return {};
}

Status MetadataRoom::JudgeMaker(uint32_t uid, uint64_t room) {
  if (room == 0) return NoRoom(kKept);
  if (uid == 0 || uid == own_uid_) return {};
  if (room <= chunks_.reserve_bytes() / 5) return NoRoom("what is left is kept for root");
  if (!HoldsTooMuch(uid, room)) return {};
  return NoRoom("user " + std::to_string(uid) + " has more than half of it, and what is left is kept for others");
}

bool MetadataRoom::HoldsTooMuch(uint32_t uid, uint64_t room) {
  const uint64_t held = chunks_.MetadataBytes();
  if (room > held) return false;
  CountInBackground();
  if (room > (held + room) / 4) return false;
  MutexLock lock(mutex_);
  auto own = bytes_by_uid_.find(uid);
  if (own == bytes_by_uid_.end()) return false;
  // As a share: on the disk entries are compressed.
  const double share = static_cast<double>(own->second) / static_cast<double>(counted_bytes_);
  return share * static_cast<double>(held) > static_cast<double>(held + room) / 2;
}

void MetadataRoom::CountInBackground() {
  const auto began = Clock::Now();
  MutexLock lock(mutex_);
  if (is_counting_ || began < not_counted_before_) return;
  is_counting_ = true;
  waiters_.Post([this, began] {
    auto owners = CountByOwner(until_stop_, kv_);
    const auto now = Clock::Now();
    MutexLock counted(mutex_);
    is_counting_ = false;
    not_counted_before_ = now + std::max<std::chrono::nanoseconds>(kPausePerCount * (now - began), kRoomPauseMin);
    if (!owners.ok()) return;
    bytes_by_uid_.clear();
    counted_bytes_ = 0;
    for (const MetadataOwner& owner : *owners) {
      bytes_by_uid_[owner.uid] = owner.bytes;
      counted_bytes_ += owner.bytes;
    }
  });
}

Status ToldNameRoom::Judge(NameChange change, uint32_t uid, uint64_t /*unwritten_bytes*/) {
  if (change != NameChange::kMakes || uid == 0 || uid == own_uid_ || BytesForUsers(0) > 0) return {};
  return NoRoom("what is left where the names are kept is kept for root");
}

}  // namespace cairnfs::fs
