#include "fs/quota_usage.h"

#include <algorithm>

namespace cairnfs::fs {

using meta::QuotaBytes;

static void Add(QuotaBytes& to, const QuotaBytes& more) {
  to.logical += more.logical;
  to.unique += more.unique;
}

static void Subtract(QuotaBytes& from, const QuotaBytes& less) {
  from.logical -= less.logical;
  from.unique -= less.unique;
}

QuotaBytes QuotaUsage::Quota::SharesBut(std::string_view node) const {
  QuotaBytes sum;
  for (const auto& [other, bytes] : shares) {
    if (other != node) Add(sum, bytes);
  }
  return sum;
}

static bool Fits(uint64_t used, uint64_t more, uint64_t limit) {
  return more == 0 || (used <= limit && more <= limit - used);
}

bool QuotaUsage::Standing::Fits(const QuotaBytes& bytes) const {
  return fs::Fits(used.logical, bytes.logical, limit.logical) && fs::Fits(used.unique, bytes.unique, limit.unique);
}

void QuotaUsage::Note(std::string_view key, const std::optional<std::string_view>& value, uint64_t revision) {
  MutexLock lock(mutex_);
  if (const auto inode = meta::InodeOfUsageKey(key)) {
    NoteFile(*inode, value, revision);
  } else if (const auto directory = meta::InodeOfQuotaKey(key)) {
    NoteQuota(*directory, value, revision);
  } else if (const auto of_host = meta::DecodeQuotaShareKey(key)) {
    NoteShare(*of_host, value, revision);
  }
}

void QuotaUsage::NoteGone(InodeId inode) {
  MutexLock lock(mutex_);
  const auto found = table_.files.find(inode);
  if (found != table_.files.end()) NoteFile(inode, std::nullopt, found->second.revision);
}

void QuotaUsage::NoteQuota(InodeId directory, const std::optional<std::string_view>& value, uint64_t revision) {
  Sums& sums = table_.quotas[directory];
  auto record = value ? meta::QuotaRecord::Decode(*value) : Result<meta::QuotaRecord>(InvalidArgument(""));
  if (revision < sums.quota.record_revision) return;
  table_.count -= sums.exists ? 1 : 0;
  sums.exists = record.ok();
  table_.count += sums.exists ? 1 : 0;
  if (record.ok()) sums.quota.record = *record;
  sums.quota.record_revision = revision;
  Drop(directory);
}

void QuotaUsage::NoteShare(const meta::QuotaShareKeyParts& key, const std::optional<std::string_view>& value,
                           uint64_t revision) {
  Sums& sums = table_.quotas[key.directory];
  const auto known = sums.share_revisions.find(key.node);
  if (known != sums.share_revisions.end() && known->second > revision) return;
  auto share = value ? meta::QuotaShare::Decode(*value) : Result<meta::QuotaShare>(InvalidArgument(""));
  if (share.ok()) {
    sums.quota.shares[key.node] = share->bytes;
    sums.share_revisions[key.node] = revision;
  } else {
    sums.quota.shares.erase(key.node);
    sums.share_revisions.erase(key.node);
  }
  Drop(key.directory);
}

void QuotaUsage::NoteFile(InodeId inode, const std::optional<std::string_view>& value, uint64_t revision) {
  auto record = value ? meta::UsageRecord::Decode(*value) : Result<meta::UsageRecord>(InvalidArgument(""));
  auto& files = table_.files;
  if (const auto found = files.find(inode); found != files.end()) {
    if (found->second.revision > revision) return;
    const InodeId quota = found->second.quota;
    Subtract(table_.quotas[quota].quota.used, found->second.bytes);
    files.erase(found);
    if (!record.ok() || record->quota != quota) Drop(quota);
  }
  if (!record.ok()) return;
  files[inode] = {record->quota, record->bytes, revision};
  Add(table_.quotas[record->quota].quota.used, record->bytes);
}

void QuotaUsage::Drop(InodeId quota) {
  const auto found = table_.quotas.find(quota);
  const Quota& kept = found->second.quota;
  if (!found->second.exists && kept.used == QuotaBytes{} && kept.shares.empty()) table_.quotas.erase(found);
}

void QuotaUsage::NoteRevision(uint64_t revision) {
  MutexLock lock(mutex_);
  revision_ = std::max(revision_, revision);
  told_.NotifyAll();
}

void QuotaUsage::Exchange(QuotaUsage& fresh, uint64_t revision) {
  Table table;
  {
    MutexLock lock(fresh.mutex_);
    std::swap(table, fresh.table_);
  }
  MutexLock lock(mutex_);
  std::swap(table, table_);
  revision_ = revision;
  told_.NotifyAll();
}

bool QuotaUsage::any() const {
  MutexLock lock(mutex_);
  return table_.count > 0;
}

QuotaUsage::Quota QuotaUsage::Now(const Sums& sums) const {
  Quota quota = sums.quota;
  quota.revision = revision_;
  return quota;
}

const QuotaUsage::Sums* QuotaUsage::FindSums(InodeId quota) const {
  const auto found = table_.quotas.find(quota);
  return found == table_.quotas.end() || !found->second.exists ? nullptr : &found->second;
}

std::optional<QuotaUsage::Quota> QuotaUsage::Find(InodeId quota) const {
  MutexLock lock(mutex_);
  const Sums* sums = FindSums(quota);
  return sums == nullptr ? std::nullopt : std::optional(Now(*sums));
}

std::optional<QuotaUsage::Standing> QuotaUsage::StandingOf(InodeId quota) const {
  MutexLock lock(mutex_);
  const Sums* sums = FindSums(quota);
  if (sums == nullptr) return std::nullopt;
  return Standing{sums->quota.record.limit, sums->quota.used, sums->quota.record_revision};
}

std::vector<std::pair<InodeId, QuotaUsage::Quota>> QuotaUsage::All() const {
  MutexLock lock(mutex_);
  std::vector<std::pair<InodeId, Quota>> all;
  for (const auto& [id, sums] : table_.quotas) {
    if (sums.exists) all.emplace_back(id, Now(sums));
  }
  return all;
}

QuotaBytes QuotaUsage::Of(InodeId quota, InodeId inode) const {
  MutexLock lock(mutex_);
  const auto found = table_.files.find(inode);
  return found == table_.files.end() || found->second.quota != quota ? QuotaBytes{} : found->second.bytes;
}

uint64_t QuotaUsage::revision() const {
  MutexLock lock(mutex_);
  return revision_;
}

bool QuotaUsage::AwaitRevision(const Context& context, uint64_t revision) const {
  MutexLock lock(mutex_);
  return context.Wait(mutex_, told_, [&]() REQUIRES_LOCK(mutex_) { return revision_ >= revision; });
}

}  // namespace cairnfs::fs
