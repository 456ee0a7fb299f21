#include "fs/quotas.h"

#include <algorithm>
#include <utility>

#include "base/answer.h"
#include "base/start_thread.h"
#include "fs/trash.h"

namespace cairnfs::fs {
namespace {

constexpr unsigned kQuotaThreads = 4;
constexpr std::chrono::milliseconds kGiveBackEvery{400};
// Others give back what they do not use within twice that.
constexpr std::chrono::milliseconds kOthersWait{1000}, kOthersLook{100};
constexpr std::chrono::seconds kVainHolds{1};
constexpr std::chrono::seconds kPublishNewsWait{2};
constexpr std::chrono::milliseconds kNewsLook{5};
constexpr int kSettleTriesMax = 16;  // of one write: others may take what was found for it
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

void Quotas::EndWaits() { stop_.request_stop(); }

void Quotas::Stop() {
  EndWaits();
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

Status Quotas::Promise(const Context& context, InodeId quota, InodeId file, const meta::QuotaBytes& bytes) {
  const auto take = [this, quota, file, bytes] {
    const auto standing = usage_.StandingOf(quota);
    MutexLock lock(mutex_);
    if (standing && !Take(credits_[quota], *standing, bytes)) return false;
    promised_[file] = {quota, bytes};
    return true;
  };
  // `context` ends it: Settle answers then.
  return *AwaitStatus({}, [&](const Done<void>& done) {
    const auto attempt = [take, done] {
      const bool is_taken = take();
      if (is_taken) done({});
      return is_taken;
    };
    Settle(context, {quota, bytes, attempt, done});
  });
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
  return Clock::Now() < credit.vain_until && credit.vain_at == standing->used && (!credit.frees || credit.vain_frees) &&
         credit.record_revision == standing->record_revision;
}

void Quotas::NoteVain(InodeId quota, const meta::QuotaBytes& used) {
  MutexLock lock(mutex_);
  Credit& credit = credits_[quota];
  credit.vain_until = Clock::Now() + kVainHolds;
  credit.vain_frees = credit.frees;
  credit.vain_at = used;
}

Status Quotas::CheckMayCreate(InodeId quota) const {
  const auto standing = quota.value == 0 ? std::nullopt : usage_.StandingOf(quota);
  return !standing || standing->Fits({1, 1}) ? Status() : Exceeded(quota);
}

void Quotas::AwaitMayCreate(const Context& context, InodeId quota, Done<void> done) {
  const auto attempt = [this, quota, done] {
    const bool may = CheckMayCreate(quota).ok();
    if (may) done({});
    return may;
  };
  Settle(context, {quota, {1, 1}, attempt, done});
}

void Quotas::Settle(const Context& context, Lack lack) {
  if (lack.attempt()) return;
  SettleAgain(context, std::make_shared<const Lack>(std::move(lack)), kSettleTriesMax);
}

void Quotas::SettleAgain(const Context& context, const std::shared_ptr<const Lack>& lack, int tries_left) {
  auto settled = [this, context, lack, tries_left](const Status& status) {
    const bool is_gone = !status.ok() && status.error().code == ErrorCode::kInterrupted;
    if (!is_gone && lack->attempt()) return;
    if (!status.ok()) return lack->refused(status.error());
    if (tries_left == 1 || IsVain(lack->quota)) return lack->refused(Exceeded(lack->quota));
    SettleAgain(context, lack, tries_left - 1);
  };
  auto answer = at_.waits.Within(context.WithoutDeadline(), std::move(settled));
  SettleOnce(lack->quota, lack->bytes,
             [answer = std::move(answer)](const Status& status) { static_cast<void>(answer(status)); });
}

void Quotas::SettleOnce(InodeId quota, const meta::QuotaBytes& bytes, Done<void> done) {
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
  const Status settled = SettleNow(quota, sum);
  for (const Waiting& waiting : batch) waiting.done(settled);
  queue.Post([this, quota, &queue] { SettleBatch(queue, quota); });  // behind those of other quotas
}

Status Quotas::SettleNow(InodeId quota, const meta::QuotaBytes& bytes) {
  const Context context = until_stop_.WithStop(stop_.get_token()).WithTimeout(at_.wait_max);
  CAIRNFS_RETURN_IF_ERROR(RenewInTime(context, quota, bytes));
  if (Has(quota, bytes) || IsVain(quota)) return {};
  // A round stores all that was accepted, and publishes it: then it is known what of it was new.
  CAIRNFS_RETURN_IF_ERROR(AwaitRound(context));
  std::optional<QuotaUsage::Standing> looked_at;
  do {
    looked_at = usage_.StandingOf(quota);
    CAIRNFS_RETURN_IF_ERROR(RenewAmongOthers(context, quota, bytes));
    if (Has(quota, bytes)) return {};
  } while (!context.Expired() && EmptyTrash(context, quota, bytes));
  // What is freed since that was looked at is worth another look.
  if (looked_at) NoteVain(quota, looked_at->used);
  return {};
}

// What it could not publish counts as it is here.
Status Quotas::AwaitRound(const Context& context) {
  const auto ended = AwaitStatus(context, [this](Done<void> done) { at_.rounds.Request(std::move(done)); });
  if (ended) return {};
  return MakeError(ErrorCode::kUnavailable, "what was written is not published, so nobody knows what of it counts");
}

Status Quotas::RenewAmongOthers(const Context& context, InodeId quota, const meta::QuotaBytes& bytes) {
  const auto until = Clock::Now() + kOthersWait;
  for (;;) {
    CAIRNFS_RETURN_IF_ERROR(RenewInTime(context, quota, bytes));
    if (Has(quota, bytes) || !shares_->HaveOthers(quota)) return {};
    if (Clock::Now() >= until || !context.Sleep(kOthersLook)) return {};
  }
}

// Waits for the news of it, too.
bool Quotas::EmptyTrash(const Context& context, InodeId quota, const meta::QuotaBytes& bytes) {
  const auto before = usage_.StandingOf(quota);
  if (!before) return false;
  const auto lacking = [&](uint64_t meta::QuotaBytes::*of) {
    return Minus(bytes.*of, Minus(before->limit.*of, before->used.*of));
  };
  const uint64_t lacks = std::max(lacking(&meta::QuotaBytes::logical), lacking(&meta::QuotaBytes::unique));
  const auto is_told = [&] {
    const auto standing = usage_.StandingOf(quota);
    return !standing || standing->used.logical < before->used.logical;
  };
  if (!at_.trash.EmptyOldestUnder(context, quota, lacks, is_told)) return false;
  const Context soon = context.WithTimeout(kPublishNewsWait);
  while (!is_told() && soon.Sleep(kNewsLook)) {
  }
  return true;
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
Status Quotas::Renew(const Context& context, InodeId quota, const meta::QuotaBytes& bytes, Wants wants) {
  MutexLock renewing(renewing_);
  if (wants == Wants::kMore && Has(quota, bytes)) return {};
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
  if (!known) return {};
  const meta::QuotaBytes& limit = known->record.limit;
  const auto wanted = [&](uint64_t meta::QuotaBytes::*of) {
    if (wants == Wants::kNothing) return grown.*of;
    const uint64_t left = Minus(limit.*of, known->used.*of + grown.*of);
    const uint64_t some = std::clamp(left / kWantedShare, kWantedMin, kWantedMax);
    return grown.*of + std::max(some, bytes.*of);
  };
  const auto allowed =
      shares_->Take(context, quota, {grown, {wanted(&meta::QuotaBytes::logical), wanted(&meta::QuotaBytes::unique)}});
  if (!allowed.ok()) {  // nothing is accepted then
    return allowed.error().code == ErrorCode::kNotFound ? Status() : Status(allowed.error());
  }
  MutexLock lock(mutex_);
  Credit& credit = credits_[quota];
  credit.record_revision = known->record_revision;
  credit.session = session;
  credit.frees = growth.frees;
  if (wants == Wants::kNothing) return {};
  credit.used = true;  // whoever waits for it is about to
  credit.left = {Minus(allowed->logical, grown.logical), Minus(allowed->unique, grown.unique)};
  return {};
}

// A store that is away is waited for, and so are other hosts that are quicker.
Status Quotas::RenewInTime(const Context& context, InodeId quota, const meta::QuotaBytes& bytes) {
  for (;;) {
    Status renewed = Renew(context, quota, bytes, Wants::kMore);
    const bool may_pass = !renewed.ok() && (renewed.error().code == ErrorCode::kUnavailable ||
                                            renewed.error().code == ErrorCode::kConflict);
    if (!may_pass) return renewed;
    if (!context.Sleep(kOthersLook)) return renewed.error().WithContext("how much room a quota has is not known");
  }
}

// What was not used for a while goes to others, also a share of which no credit is known any more.
void Quotas::GiveBack() {
  at_.names.SetHasQuotas(any());
  std::vector<InodeId> unused;
  const auto all = usage_.All();
  {
    MutexLock lock(mutex_);
    std::erase_if(credits_, [this](const auto& item) { return !usage_.StandingOf(item.first); });
    for (const auto& [quota, known] : all) {
      if (const auto found = credits_.find(quota); found != credits_.end()) {
        if (std::exchange(found->second.used, false)) continue;
        found->second.left = {};
      }
      if (shares_->HasShare(quota)) unused.push_back(quota);
    }
  }
  const Context soon = until_stop_.WithTimeout(kGiveBackEvery);  // another time, where the store is away
  for (const InodeId quota : unused) static_cast<void>(Renew(soon, quota, {}, Wants::kNothing).ok());
}

}  // namespace cairnfs::fs
