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

void QuotaUsage::Note(std::string_view key, const std::optional<std::string_view>& value, uint64_t revision) {
  MutexLock lock(mutex_);
  if (const auto inode = meta::InodeOfUsageKey(key)) {
    NoteFile(*inode, value, revision);
  } else if (const auto directory = meta::InodeOfQuotaKey(key)) {
    Sums& sums = quotas_[*directory];
    auto record = value ? meta::QuotaRecord::Decode(*value) : Result<meta::QuotaRecord>(InvalidArgument(""));
    if (revision < sums.quota.record_revision) return;
    count_ -= sums.exists ? 1 : 0;
    sums.exists = record.ok();
    count_ += sums.exists ? 1 : 0;
    if (record.ok()) sums.quota.record = *record;
    sums.quota.record_revision = revision;
    Drop(*directory);
  } else if (const auto of_host = meta::DecodeQuotaShareKey(key)) {
    auto& shares = quotas_[of_host->directory].quota.shares;
    auto share = value ? meta::QuotaShare::Decode(*value) : Result<meta::QuotaShare>(InvalidArgument(""));
    shares.erase(of_host->node);
    if (share.ok()) shares.emplace(of_host->node, share->bytes);
    Drop(of_host->directory);
  }
}

void QuotaUsage::NoteFile(InodeId inode, const std::optional<std::string_view>& value, uint64_t revision) {
  auto record = value ? meta::UsageRecord::Decode(*value) : Result<meta::UsageRecord>(InvalidArgument(""));
  if (const auto found = files_.find(inode); found != files_.end()) {
    if (found->second.revision > revision) return;
    const InodeId quota = found->second.quota;
    Subtract(quotas_[quota].quota.used, found->second.bytes);
    files_.erase(found);
    if (!record.ok() || record->quota != quota) Drop(quota);
  }
  if (!record.ok()) return;
  files_[inode] = {record->quota, record->bytes, revision};
  Add(quotas_[record->quota].quota.used, record->bytes);
}

void QuotaUsage::Drop(InodeId quota) {
  const auto found = quotas_.find(quota);
  const Quota& kept = found->second.quota;
  if (!found->second.exists && kept.used == QuotaBytes{} && kept.shares.empty()) quotas_.erase(found);
}

void QuotaUsage::NoteRevision(uint64_t revision) {
  MutexLock lock(mutex_);
  revision_ = std::max(revision_, revision);
  told_.NotifyAll();
}

void QuotaUsage::Clear() {
  MutexLock lock(mutex_);
  quotas_.clear();
  files_.clear();
  count_ = 0;
}

bool QuotaUsage::any() const {
  MutexLock lock(mutex_);
  return count_ > 0;
}

QuotaUsage::Quota QuotaUsage::Now(const Sums& sums) const {
  Quota quota = sums.quota;
  quota.revision = revision_;
  return quota;
}

std::optional<QuotaUsage::Quota> QuotaUsage::Find(InodeId quota) const {
  MutexLock lock(mutex_);
  const auto found = quotas_.find(quota);
  if (found == quotas_.end() || !found->second.exists) return std::nullopt;
  return Now(found->second);
}

std::optional<uint64_t> QuotaUsage::RecordRevision(InodeId quota) const {
  MutexLock lock(mutex_);
  const auto found = quotas_.find(quota);
  if (found == quotas_.end() || !found->second.exists) return std::nullopt;
  return found->second.quota.record_revision;
}

std::vector<std::pair<InodeId, QuotaUsage::Quota>> QuotaUsage::All() const {
  MutexLock lock(mutex_);
  std::vector<std::pair<InodeId, Quota>> all;
  for (const auto& [id, sums] : quotas_) {
    if (sums.exists) all.emplace_back(id, Now(sums));
  }
  return all;
}

QuotaBytes QuotaUsage::Of(InodeId quota, InodeId inode) const {
  MutexLock lock(mutex_);
  const auto found = files_.find(inode);
  return found == files_.end() || found->second.quota != quota ? QuotaBytes{} : found->second.bytes;
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
