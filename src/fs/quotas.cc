#include "fs/quotas.h"

#include <algorithm>
#include <chrono>

#include "base/start_thread.h"

namespace cairnfs::fs {
namespace {

constexpr unsigned kQuotaThreads = 4;
constexpr std::chrono::milliseconds kGiveBackEvery{400};
// Others give back what they do not use within twice that.
constexpr std::chrono::milliseconds kOthersWait{1000}, kOthersLook{100};
constexpr std::chrono::seconds kVainHolds{1};
constexpr std::chrono::seconds kPublishNewsWait{2};
// What a host wants at a time of what is left: a share for each host, and more when that is used up.
constexpr uint64_t kWantedShare = 16, kWantedMax = 256 * kMiB, kWantedMin = 64 * kKiB;

uint64_t Minus(uint64_t value, uint64_t less) { return value - std::min(value, less); }

}  // namespace

Status Quotas::Start() {
  CAIRNFS_RETURN_IF_ERROR(shares_->Start());
  at_.names.SetHasQuotas(any());
  queue_ = std::make_unique<TaskQueue>("cairn-quota", kQuotaThreads);
  if (!shares_->are_taken_from_others()) return {};
  give_back_ = std::thread([this] {
    const Context context = until_stop_.WithStop(stop_.get_token());
    while (context.Sleep(kGiveBackEvery)) GiveBack();
  });
  return {};
}

void Quotas::Stop() {
  stop_.request_stop();
  if (give_back_.joinable()) give_back_.join();
  queue_.reset();
}

Error Quotas::Exceeded(InodeId quota) const {
  return MakeError(ErrorCode::kQuotaExceeded, "the quota of directory " + std::to_string(quota.value) + " is used up");
}

bool Quotas::TakeCredit(InodeId quota, const meta::QuotaBytes& bytes) {
  const auto record_revision = usage_.RecordRevision(quota);
  if (!record_revision) return true;
  MutexLock lock(mutex_);
  Credit& credit = credits_[quota];
  credit.used = true;
  if (!credit.Has(bytes, *record_revision)) return false;
  credit.left.logical -= bytes.logical;
  credit.left.unique -= bytes.unique;
  return true;
}

bool Quotas::Has(InodeId quota, const meta::QuotaBytes& bytes) const {
  const auto record_revision = usage_.RecordRevision(quota);
  MutexLock lock(mutex_);
  const auto found = credits_.find(quota);
  return !record_revision || (found != credits_.end() && found->second.Has(bytes, *record_revision));
}

bool Quotas::IsVain(InodeId quota) const {
  const auto known = usage_.Find(quota);
  MutexLock lock(mutex_);
  const auto found = credits_.find(quota);
  if (!known || found == credits_.end()) return false;
  return Clock::Now() < found->second.vain_until && found->second.vain_at == known->used &&
         found->second.record_revision == known->record_revision;
}

Status Quotas::CheckMayCreate(InodeId quota) const {
  const auto known = usage_.Find(quota);
  if (!known) return {};
  const meta::QuotaBytes& limit = known->record.limit;
  const bool is_full = known->used.logical >= limit.logical || known->used.unique >= limit.unique;
  return is_full ? Exceeded(quota) : Status();
}

void Quotas::Settle(InodeId quota, const meta::QuotaBytes& bytes, Done<void> done) {
  queue_->Post([this, quota, bytes, done = std::move(done)] {
    SettleNow(quota, bytes);
    done({});
  });
}

void Quotas::SettleNow(InodeId quota, const meta::QuotaBytes& bytes) {
  Renew(quota, bytes, Wants::kMore);
  if (Has(quota, bytes)) return;
  // A round stores all that was accepted, and publishes it: then it is known what of it was new.
  static_cast<void>(at_.rounds.RequestAndWait().ok());
  const auto until = Clock::Now() + kOthersWait;
  for (;;) {
    Renew(quota, bytes, Wants::kMore);
    if (Has(quota, bytes)) return;
    if (!shares_->HaveOthers(quota) || IsVain(quota) || Clock::Now() >= until || !until_stop_.Sleep(kOthersLook)) break;
  }
  const auto known = usage_.Find(quota);
  MutexLock lock(mutex_);
  Credit& credit = credits_[quota];
  credit.vain_until = Clock::Now() + kVainHolds;
  if (known) credit.vain_at = known->used;
}

// What files of the quota have here beyond what is published of them.
meta::QuotaBytes Quotas::Growth(InodeId quota) {
  meta::QuotaBytes growth;
  at_.table.ForEachHeld([&](const InodePtr& inode) {
    MutexLock lock(inode->mutex);
    if (!inode->content || inode->content->quota != quota) return;
    const meta::QuotaBytes now = inode->content->QuotaBytes(), published = usage_.Of(quota, inode->id);
    growth.logical += Minus(now.logical, published.logical);
    growth.unique += Minus(now.unique, published.unique);
  });
  return growth;
}

// Nothing is taken meanwhile. What was taken before is in its file before that file is looked at, by the inode's lock.
void Quotas::Renew(InodeId quota, const meta::QuotaBytes& bytes, Wants wants) {
  MutexLock renewing(renewing_);
  if (wants == Wants::kMore && Has(quota, bytes)) return;
  // What is published and not told yet would be in no sum.
  static_cast<void>(usage_.AwaitRevision(until_stop_.WithTimeout(kPublishNewsWait), at_.files.counted_revision));
  const auto known = usage_.Find(quota);
  if (!known) return;
  {
    MutexLock lock(mutex_);
    credits_[quota].left = {};
  }
  const meta::QuotaBytes grown = Growth(quota);
  const meta::QuotaBytes& limit = known->record.limit;
  const auto wanted = [&](uint64_t meta::QuotaBytes::*of) {
    if (wants == Wants::kNothing) return grown.*of;
    const uint64_t left = Minus(limit.*of, known->used.*of + grown.*of);
    const uint64_t some = std::clamp(left / kWantedShare, kWantedMin, kWantedMax);
    return grown.*of + std::max(some, bytes.*of);
  };
  const auto allowed = shares_->Take(until_stop_, quota,
                                     {grown, {wanted(&meta::QuotaBytes::logical), wanted(&meta::QuotaBytes::unique)}});
  if (!allowed.ok()) return;  // nothing is accepted then
  MutexLock lock(mutex_);
  Credit& credit = credits_[quota];
  credit.record_revision = known->record_revision;
  if (wants == Wants::kNothing) return;
  credit.left = {Minus(allowed->logical, grown.logical), Minus(allowed->unique, grown.unique)};
}

// What was not used for a while goes to others.
void Quotas::GiveBack() {
  at_.names.SetHasQuotas(any());
  std::vector<InodeId> unused, gone;
  {
    MutexLock lock(mutex_);
    for (auto& [quota, credit] : credits_) {
      const auto known = usage_.Find(quota);
      if (!known) gone.push_back(quota);
      if (!std::exchange(credit.used, false) && known && shares_->HasShare(quota)) unused.push_back(quota);
    }
    for (const InodeId quota : gone) credits_.erase(quota);
  }
  for (const InodeId quota : unused) Renew(quota, {}, Wants::kNothing);
}

}  // namespace cairnfs::fs
