#include "kvnet/etcd_room.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/log.h"

namespace cairnfs::kvnet {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kKeptShare = 8, kKeptMin = 384 << 20;

uint64_t KeptOf(uint64_t quota) { return std::max(quota / kKeptShare, std::min(quota / 4 * 3, kKeptMin)); }
uint64_t KeptFromUsers(uint64_t kept) { return kept + kept / 4; }  // for root, and for removals

// etcd's estimate of what a key takes beside its bytes (kvOverhead in its quota.go).
constexpr uint64_t kPutOverheadBytes = 256;
constexpr uint64_t kSlotBytes = 200;  // of its key and value

// No etcd on one disk takes more than half of its quota in the first, or the kept part in the last.
constexpr milliseconds kLookWhilePlenty{10'000}, kLookLater{2'000}, kLookWhileShort{500};
// etcd commits to its file, and counts it, after a tenth of that, or later on a busy disk.
constexpr milliseconds kInFileAfter{1'000};
// Between two looks one host lets in so much of what is kept, or so many bytes. So 64 hosts at once take half of what
// is kept at most, and more of them what etcd can write between two looks.
constexpr uint64_t kLetInShare = 128, kLetInMin = 64 << 10;

// A compaction visits all keys: 2 s for 60 MB of small ones (docs/decisions/full-disk.md).
constexpr uint64_t kCompactedBytesPerSecond = 20'000'000;
constexpr std::chrono::seconds kCompactionPauseMin{1};
// The history of so few may wait: for so many times as long as a compaction takes at most, so that a dump of all keys
// comes to its end while next to nobody writes.
constexpr uint64_t kFewRevisions = 100;
constexpr int kRestPauses = 3;
constexpr std::chrono::seconds kRestPauseMin{5};

uint64_t Less(uint64_t from, uint64_t bytes) { return from > bytes ? from - bytes : 0; }

double Mib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

uint64_t EtcdCostOf(const kv::Transaction& transaction) {
  if (transaction.writes.empty()) return 0;
  uint64_t bytes = kSlotBytes + kPutOverheadBytes;
  for (const kv::KvWrite& write : transaction.writes) {
    bytes += write.key.size() + kPutOverheadBytes + (write.value ? write.value->size() : 0);
  }
  return bytes;
}

EtcdRoom::EtcdRoom() : own_uid_(geteuid()) {}

EtcdRoom::Left EtcdRoom::LeftAfter(uint64_t bytes) const {
  if (members_.empty()) return left_;
  const uint64_t untold = let_in_total_ - told_total_ + bytes;
  return {Less(left_.used, untold), Less(left_.file, untold), left_.kept};
}

EtcdRoom::Look EtcdRoom::BeginLook() const {
  MutexLock lock(mutex_);
  return {Clock::Now(), let_in_total_};
}

void EtcdRoom::Note(const std::vector<Space>& members, const Look& look) {
  MutexLock lock(mutex_);
  has_looked_ = true;
  looked_at_ = Clock::Now();
  if (members.empty()) return;
  last_look_ = look;
  if (look.began - next_told_.began >= kInFileAfter) {
    told_total_ = next_told_.let_in_total;
    next_told_ = look;
  }
  members_.clear();
  left_ = {};
  largest_ = {};
  for (const Space& member : members) {
    if (member.quota_bytes == 0) continue;
    members_.push_back(member);
    const uint64_t used_left = Less(member.quota_bytes, member.used_bytes);
    left_.file = std::min(left_.file, Less(member.quota_bytes, member.file_bytes));
    if (used_left >= left_.used) continue;
    left_.used = used_left;
    left_.kept = KeptOf(member.quota_bytes);
    largest_ = member;
  }
  compacted_revision_ = std::min(compacted_revision_, largest_.revision);  // a backup may have been restored
  TellWhetherShort();
}

// What users may still take when room gets short.
uint64_t EtcdRoom::SoonBytes() const {
  return std::min(left_.kept / 4, Less(largest_.quota_bytes, KeptFromUsers(left_.kept)) / 2);
}

// Once, and not again and again where it comes and goes.
void EtcdRoom::TellWhetherShort() {
  const bool is_file_short = left_.file <= left_.kept / 8;
  const uint64_t left = Less(left_.used, KeptFromUsers(left_.kept));
  const bool is_short = !members_.empty() && (is_file_short || left < SoonBytes());
  if (is_short == is_short_ || (!is_short && left < SoonBytes() * 3 / 2)) return;
  is_short_ = is_short;
  const std::string sizes = fmt::format("{:.0f} of the {:.0f} MiB of its quota are in use, and its file has {:.0f} MiB",
                                        Mib(largest_.used_bytes), Mib(largest_.quota_bytes), Mib(largest_.file_bytes));
  if (!is_short) return spdlog::info("etcd at {} has room again: {}", largest_.address, sizes);
  spdlog::warn(
      "etcd at {} gets short of room: {}. Its history is compacted all the time now. With less than {:.0f} MiB left "
      "users can make no names, and with less than {:.0f} nobody can. Remove files, or raise --quota-backend-bytes{}",
      largest_.address, sizes, Mib(KeptFromUsers(left_.kept)), Mib(left_.kept),
      is_file_short ? "; defragment it (etcdctl defrag): its file is what is too large" : "");
}

Clock::duration EtcdRoom::LookInterval() const {
  if (members_.empty() || is_short_) return kLookWhileShort;
  if (Less(LeftAfter(0).used, KeptFromUsers(left_.kept)) < SoonBytes()) return kLookWhileShort;
  return left_.used > largest_.quota_bytes / 2 ? kLookWhilePlenty : kLookLater;
}

bool EtcdRoom::IsLookDue() const {
  MutexLock lock(mutex_);
  return !has_looked_ || Clock::Now() - looked_at_ >= LookInterval();
}

bool EtcdRoom::IsLookDueFor(uint64_t bytes) const {
  MutexLock lock(mutex_);
  // What is due by the time alone is left to housekeeping, unless that does not come: members may be slow to answer.
  if (!has_looked_ || Clock::Now() - looked_at_ >= 2 * LookInterval()) return true;
  if (members_.empty()) return false;
  const uint64_t since = let_in_total_ - last_look_.let_in_total;
  return since > 0 && since + bytes > std::max(left_.kept / kLetInShare, kLetInMin);
}

void EtcdRoom::NoteLetIn(uint64_t bytes) {
  MutexLock lock(mutex_);
  let_in_total_ += bytes;
}

Error EtcdRoom::NoRoom(const char* for_whom) const {
  std::string members;
  for (const Space& member : members_) {
    members += fmt::format("{}etcd at {} uses {:.0f} of {:.0f} MiB in a file of {:.0f}", members.empty() ? "" : ", ",
                           member.address, Mib(member.used_bytes), Mib(member.quota_bytes), Mib(member.file_bytes));
  }
  return MakeError(ErrorCode::kNoSpace, members + ", and what is left is kept for " + for_whom);
}

Status EtcdRoom::Judge(kv::NameChange change, uint32_t uid, uint64_t unwritten_bytes) {
  if (change != kv::NameChange::kMakes && change != kv::NameChange::kAlters) return {};
  MutexLock lock(mutex_);
  if (members_.empty()) return {};
  const Left left = LeftAfter(unwritten_bytes);
  if (change == kv::NameChange::kAlters) {
    if (left.used > left.kept * 7 / 8 && left.file > left.kept / 16) return {};
    return NoRoom("removing files");
  }
  if (left.used <= left.kept || left.file <= left.kept / 8) return NoRoom("removing files");
  if (uid == 0 || uid == own_uid_ || left.used > KeptFromUsers(left.kept)) return {};
  return NoRoom("root");
}

uint64_t EtcdRoom::BytesForUsers(uint64_t unwritten_bytes) const {
  MutexLock lock(mutex_);
  const Left left = LeftAfter(unwritten_bytes);
  if (left.file <= left.kept / 8) return 0;
  return Less(left.used, KeptFromUsers(left.kept));
}

bool EtcdRoom::IsKnown() const {
  MutexLock lock(mutex_);
  return !members_.empty();
}

bool EtcdRoom::IsShort() const {
  MutexLock lock(mutex_);
  return is_short_;
}

bool EtcdRoom::SlowsRemovals() const {
  MutexLock lock(mutex_);
  return !members_.empty() && LeftAfter(0).used < left_.kept * 3 / 4;
}

std::optional<uint64_t> EtcdRoom::CompactionDue() const {
  MutexLock lock(mutex_);
  const auto now = Clock::Now();
  if (!is_short_ || now < not_compacted_before_ || largest_.revision <= compacted_revision_) return std::nullopt;
  if (largest_.revision < compacted_revision_ + kFewRevisions && now < rest_compacted_at_) return std::nullopt;
  return largest_.revision;
}

void EtcdRoom::NoteCompacted(uint64_t revision, std::optional<Clock::duration> taken) {
  MutexLock lock(mutex_);
  compacted_revision_ = revision;
  const milliseconds unknown(largest_.used_bytes * 1000 / kCompactedBytesPerSecond);
  not_compacted_before_ = Clock::Now() + std::max<Clock::duration>(taken.value_or(unknown), kCompactionPauseMin);
  rest_compacted_at_ = Clock::Now() + std::max<Clock::duration>(kRestPauses * unknown, kRestPauseMin);
}

}  // namespace cairnfs::kvnet
