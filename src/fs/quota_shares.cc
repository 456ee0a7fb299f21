#include "fs/quota_shares.h"

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "fs/scan.h"

namespace cairnfs::fs {
namespace {

constexpr size_t kReadAtOnce = 2048;
constexpr std::chrono::seconds kReadAgainEvery{1};
constexpr int kShareTriesMax = 20;
constexpr std::chrono::milliseconds kShareNewsWait{
    500};  // a store that tells of no changes for so long tells of none soon

uint64_t Left(uint64_t limit, uint64_t used) { return limit - std::min(limit, used); }

Error NoSuchQuota(InodeId quota) {
  return MakeError(ErrorCode::kNotFound, "directory " + std::to_string(quota.value) + " has no quota");
}

}  // namespace

Status LocalShares::Start() {
  kv_.Watch(meta::QuotasPrefix()[0], [this](std::string_view key, const std::optional<std::string>&,
                                            const std::optional<std::string>& after, uint64_t revision) {
    usage_.Note(key, after ? std::optional<std::string_view>(*after) : std::nullopt, revision);
  });
  return ScanPrefix({}, kv_, meta::QuotasPrefix(), [this](const kv::KvEntry& entry) {
    usage_.Note(entry.key, entry.value, entry.revision);
    return true;
  });
}

Result<meta::QuotaBytes> LocalShares::Take(const Context&, InodeId quota, const QuotaGrowth&) {
  const auto known = usage_.Find(quota);
  if (!known) return NoSuchQuota(quota);
  const meta::QuotaBytes& limit = known->record.limit;
  return meta::QuotaBytes{Left(limit.logical, known->used.logical), Left(limit.unique, known->used.unique)};
}

// It is read first, and then told what has changed since, in order: so nothing is told beside a read.
Status SharedShares::Start() {
  const std::string prefix = meta::QuotasPrefix(), end = kv::PrefixEnd(prefix);
  CAIRNFS_ASSIGN_OR_RETURN(const kv::KvRange first, at_.shared.Range(at_.until_stop, prefix, end, 1));
  CAIRNFS_RETURN_IF_ERROR(ReadAll(first.revision));
  kv::WatchCallbacks callbacks;
  callbacks.changed = [this](const std::vector<kv::KvEvent>& events, uint64_t revision) {
    for (const kv::KvEvent& event : events) {
      at_.usage.Note(event.key, event.value ? std::optional<std::string_view>(*event.value) : std::nullopt,
                     event.revision);
    }
    at_.usage.NoteRevision(revision);
  };
  callbacks.lost = [this](uint64_t revision) { ReadAnew(revision); };
  callbacks.went_back = [this](uint64_t revision) {
    at_.went_back();
    ReadAnew(revision);
  };
  CAIRNFS_ASSIGN_OR_RETURN(watch_, at_.shared.Watch(at_.until_stop, prefix, end, first.revision, std::move(callbacks)));
  return {};
}

Status SharedShares::ReadAll(uint64_t revision) {
  QuotaUsage fresh;
  std::string begin = meta::QuotasPrefix();
  const std::string end = kv::PrefixEnd(begin);
  for (bool more = true; more;) {
    CAIRNFS_ASSIGN_OR_RETURN(const kv::KvRange range, at_.shared.Range(at_.until_stop, begin, end, kReadAtOnce));
    for (const kv::KvEntry& entry : range.entries) fresh.Note(entry.key, entry.value, entry.revision);
    more = range.more && !range.entries.empty();
    if (more) begin = range.entries.back().key + '\0';
  }
  at_.usage.Exchange(fresh, revision);
  return {};
}

// Until it is read, what was known before holds: a share that is taken compares that no other has changed since.
void SharedShares::ReadAnew(uint64_t revision) {
  for (bool is_told = false;; is_told = true) {
    const Status read = ReadAll(revision);
    if (read.ok()) return;
    if (!is_told) spdlog::error("quotas cannot be read, and none gives more room until then: {}", read.error().message);
    if (!at_.until_stop.Sleep(kReadAgainEvery)) return;
  }
}

bool SharedShares::HasShare(InodeId quota) const {
  const auto known = at_.usage.Find(quota);
  return known && known->shares.contains(at_.self);
}

bool SharedShares::HaveOthers(InodeId quota) const {
  const auto known = at_.usage.Find(quota);
  return known && !(known->SharesBut(at_.self) == meta::QuotaBytes{});
}

// Compares that no host has changed its share since what is known: then what is known of shares holds, and what is
// published meanwhile was in them.
Status SharedShares::Put(const Context& context, InodeId quota, const QuotaUsage::Quota& known,
                         const meta::QuotaBytes& share, kv::Transaction transaction, kv::LeaseId lease) {
  const std::string prefix = meta::QuotaSharePrefix(quota), key = meta::QuotaShareKey(quota, at_.self);
  transaction.IfRangeUnchanged(prefix, kv::PrefixEnd(prefix), known.revision)
      .IfRevision(meta::QuotaKey(quota), known.record_revision);
  if (share == meta::QuotaBytes{}) {
    transaction.Delete(key);
  } else {
    transaction.writes.push_back({key, meta::QuotaShare{share}.Encode(), lease});
  }
  CAIRNFS_ASSIGN_OR_RETURN(const uint64_t revision, at_.store.Commit(context, transaction));
  leases_[quota] = lease;
  // The next one compares with this.
  static_cast<void>(at_.usage.AwaitRevision(context.WithTimeout(kShareNewsWait), revision));
  return {};
}

Result<meta::QuotaBytes> SharedShares::Take(const Context& context, InodeId quota, const QuotaGrowth& growth) {
  MutexLock lock(mutex_);
  for (int tries = 1;; tries++) {
    const auto known = at_.usage.Find(quota);
    if (!known) return NoSuchQuota(quota);
    const meta::QuotaBytes others = known->SharesBut(at_.self), &limit = known->record.limit;
    const auto share_of = [&](uint64_t meta::QuotaBytes::*of) {
      // Without a limit no share is needed.
      if (limit.*of == meta::QuotaRecord::kNoLimit) return uint64_t{0};
      const uint64_t left = Left(limit.*of, known->used.*of + others.*of);
      return std::max(growth.grown.*of, std::min(growth.wanted.*of, left));
    };
    const meta::QuotaBytes share{share_of(&meta::QuotaBytes::logical), share_of(&meta::QuotaBytes::unique)};
    kv::Transaction transaction;
    CAIRNFS_ASSIGN_OR_RETURN(const kv::LeaseId lease, at_.join(transaction));
    const auto own = known->shares.find(at_.self);
    // One of a session that has ended is about to go.
    const bool is_own = own != known->shares.end() && leases_[quota] == lease;
    const bool is_there = share == (is_own ? own->second : meta::QuotaBytes{});
    const Status put = is_there ? Status() : Put(context, quota, *known, share, std::move(transaction), lease);
    if (put.ok()) {
      const auto allowed = [&](uint64_t meta::QuotaBytes::*of) {
        return limit.*of == meta::QuotaRecord::kNoLimit ? limit.*of : share.*of;
      };
      return meta::QuotaBytes{allowed(&meta::QuotaBytes::logical), allowed(&meta::QuotaBytes::unique)};
    }
    if (put.error().code != ErrorCode::kConflict || tries == kShareTriesMax) return put.error();
    // Another host was quicker: the news of it are on their way.
    if (context.Expired()) return put.error();
    static_cast<void>(at_.usage.AwaitRevision(context.WithTimeout(kShareNewsWait), known->revision + 1));
  }
}

}  // namespace cairnfs::fs
