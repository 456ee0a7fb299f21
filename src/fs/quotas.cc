#include "fs/quotas.h"

#include <algorithm>
#include <chrono>
#include <future>

#include "base/start_thread.h"

namespace cairnfs::fs {
namespace {

constexpr unsigned kQuotaThreads = 4;
constexpr std::chrono::milliseconds kGiveBackEvery{400};
// Others give back what they do not use within twice that.
constexpr std::chrono::milliseconds kOthersWait{1000}, kOthersLook{100};
constexpr std::chrono::seconds kVainHolds{1};
constexpr std::chrono::seconds kPublishNewsWait{2};
constexpr std::chrono::milliseconds kNewsLook{5};
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

// What is published counts at once, whatever was taken for it: so nothing passes the limit by more than one round has.
bool Quotas::Has(const Credit& credit, const QuotaUsage::Standing& standing, const meta::QuotaBytes& bytes) const {
  return credit.record_revision == standing.record_revision && credit.session == shares_->session() &&
         credit.left.logical >= bytes.logical && credit.left.unique >= bytes.unique && standing.Fits(bytes);
}

bool Quotas::Take(Credit& credit, const QuotaUsage::Standing& standing, const meta::QuotaBytes& bytes) {
  credit.used = true;
  if (!Has(credit, standing, bytes)) return false;
  credit.left.logical -= bytes.logical;
  credit.left.unique -= bytes.unique;
  const auto counts = [](uint64_t some, uint64_t limit) { return some > 0 && limit != meta::QuotaRecord::kNoLimit; };
  if (counts(bytes.logical, standing.limit.logical) || counts(bytes.unique, standing.limit.unique)) {
    credit.vain_until = {};
  }
  return true;
}

bool Quotas::TakeCredit(InodeId quota, const meta::QuotaBytes& bytes) {
  const auto standing = usage_.StandingOf(quota);
  if (!standing) return true;
  MutexLock lock(mutex_);
  return Take(credits_[quota], *standing, bytes);
}

bool Quotas::Has(InodeId quota, const meta::QuotaBytes& bytes) const {
  const auto standing = usage_.StandingOf(quota);
  MutexLock lock(mutex_);
  const auto found = credits_.find(quota);
  return !standing || (found != credits_.end() && Has(found->second, *standing, bytes));
}

Status Quotas::Promise(InodeId quota, InodeId file, const meta::QuotaBytes& bytes) {
  const auto take = [&] {
    const auto standing = usage_.StandingOf(quota);
    MutexLock lock(mutex_);
    if (standing && !Take(credits_[quota], *standing, bytes)) return false;
    promised_[file] = {quota, bytes};
    return true;
  };
  if (take()) return {};
  std::promise<void> settled;
  Settle(quota, bytes, [&settled](const Status&) { settled.set_value(); });
  settled.get_future().wait();
  return take() ? Status() : Exceeded(quota);
}

void Quotas::EndPromise(InodeId file, Kept kept) {
  Promised promised;
  {
    MutexLock lock(mutex_);
    promised = promised_[file];
  }
  const Context context = until_stop_.WithTimeout(kPublishNewsWait);
  const auto is_told = [&] { return usage_.Of(promised.quota, file).logical >= promised.bytes.logical; };
  while (kept == Kept::kYes && !is_told() && context.Sleep(kNewsLook)) {
  }
  MutexLock lock(mutex_);
  promised_.erase(file);
}

void Quotas::ForgetCredits() {
  at_.files.counted_revision = 0;
  MutexLock lock(mutex_);
  credits_.clear();
}

bool Quotas::IsVain(InodeId quota) const {
  const auto standing = usage_.StandingOf(quota);
  MutexLock lock(mutex_);
  const auto found = credits_.find(quota);
  if (!standing || found == credits_.end()) return false;
  const Credit& credit = found->second;
  return Clock::Now() < credit.vain_until && credit.vain_at == standing->used && !credit.frees &&
         credit.record_revision == standing->record_revision;
}

Status Quotas::CheckMayCreate(InodeId quota) const {
  const auto standing = quota.value == 0 ? std::nullopt : usage_.StandingOf(quota);
  return !standing || standing->Fits({1, 1}) ? Status() : Exceeded(quota);
}

void Quotas::Settle(InodeId quota, const meta::QuotaBytes& bytes, Done<void> done) {
  {
    MutexLock lock(mutex_);
    const auto [found, is_first] = waiting_.try_emplace(quota);
    found->second.push_back({bytes, std::move(done)});
    if (!is_first) return;
  }
  queue_->Post([this, quota, queue = queue_.get()] { SettleBatch(*queue, quota); });
}

// One task for each quota, so that a full one takes one thread at most.
void Quotas::SettleBatch(TaskQueue& queue, InodeId quota) {
  std::vector<Waiting> batch;
  meta::QuotaBytes sum;
  {
    MutexLock lock(mutex_);
    const auto found = waiting_.find(quota);
    if (found->second.empty()) {
      waiting_.erase(found);
      return;
    }
    batch.swap(found->second);
  }
  for (const Waiting& waiting : batch) {
    sum.logical = std::min<uint64_t>(sum.logical + waiting.bytes.logical, INT64_MAX);
    sum.unique = std::min<uint64_t>(sum.unique + waiting.bytes.unique, INT64_MAX);
  }
  SettleNow(quota, sum);
  for (const Waiting& waiting : batch) waiting.done({});
  queue.Post([this, quota, &queue] { SettleBatch(queue, quota); });  // behind those of other quotas
}

void Quotas::SettleNow(InodeId quota, const meta::QuotaBytes& bytes) {
  Renew(quota, bytes, Wants::kMore);
  if (Has(quota, bytes) || IsVain(quota)) return;
  // A round stores all that was accepted, and publishes it: then it is known what of it was new.
  static_cast<void>(at_.rounds.RequestAndWait().ok());
  const auto until = Clock::Now() + kOthersWait;
  for (;;) {
    Renew(quota, bytes, Wants::kMore);
    if (Has(quota, bytes)) return;
    if (!shares_->HaveOthers(quota) || Clock::Now() >= until || !until_stop_.Sleep(kOthersLook)) break;
  }
  const auto standing = usage_.StandingOf(quota);
  MutexLock lock(mutex_);
  Credit& credit = credits_[quota];
  credit.vain_until = Clock::Now() + kVainHolds;
  if (standing) credit.vain_at = standing->used;
}

// What files of the quota have here beyond what is published of them.
Quotas::Growth Quotas::FindGrowth(InodeId quota) {
  Growth growth;
  const auto add = [&](InodeId file, const meta::QuotaBytes& now) {
    const meta::QuotaBytes published = usage_.Of(quota, file);
    growth.bytes.logical += Minus(now.logical, published.logical);
    growth.bytes.unique += Minus(now.unique, published.unique);
    if (now.logical < published.logical || now.unique < published.unique) growth.frees = true;
  };
  at_.table.ForEachHeld([&](const InodePtr& inode) {
    MutexLock lock(inode->mutex);
    if (inode->content && inode->content->quota == quota) add(inode->id, inode->content->QuotaBytes());
  });
  MutexLock lock(mutex_);
  for (const auto& [file, promised] : promised_) {
    if (promised.quota == quota) add(file, promised.bytes);
  }
  return growth;
}

// What is published and not told yet would be in no sum.
void Quotas::AwaitOwnNews() const {
  static_cast<void>(usage_.AwaitRevision(until_stop_.WithTimeout(kPublishNewsWait), at_.files.counted_revision));
}

// Nothing is taken meanwhile. What was taken before is in its file before that file is looked at, by the inode's lock.
void Quotas::Renew(InodeId quota, const meta::QuotaBytes& bytes, Wants wants) {
  MutexLock renewing(renewing_);
  if (wants == Wants::kMore && Has(quota, bytes)) return;
  const uint64_t session = shares_->session();
  {
    MutexLock lock(mutex_);
    credits_[quota].left = {};
  }
  AwaitOwnNews();  // else files would seem to have grown by what they have published
  const Growth growth = FindGrowth(quota);
  const meta::QuotaBytes& grown = growth.bytes;
  AwaitOwnNews();  // of what was published before it was looked at: it may have gone from here since
  const auto known = usage_.Find(quota);
  if (!known) return;
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
  credit.session = session;
  credit.frees = growth.frees;
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
      const bool exists = usage_.StandingOf(quota).has_value();
      if (!exists) gone.push_back(quota);
      if (std::exchange(credit.used, false) || !exists) continue;
      credit.left = {};
      if (shares_->HasShare(quota)) unused.push_back(quota);
    }
    for (const InodeId quota : gone) credits_.erase(quota);
  }
  for (const InodeId quota : unused) Renew(quota, {}, Wants::kNothing);
}

}  // namespace cairnfs::fs
