#include "kv/commit_slots.h"

#include <random>
#include <utility>

#include "base/clock.h"

namespace cairnfs::kv {
namespace {

constexpr std::chrono::minutes kLeaseTtl{60};
// In front of an attempt's name: that attempt did not run.
constexpr char kRuledOut = '!';

std::string RandomName() {
  std::random_device device;
  static constexpr char kHex[] = "0123456789abcdef";
  std::string name;
  for (int i = 0; i < 4; ++i) {
    for (uint32_t bits = device(), digit = 0; digit < 8; ++digit, bits >>= 4) name.push_back(kHex[bits & 15]);
  }
  return name;
}

// kStale only for transactions with an operation id. A caller without one cannot ask again, so it makes no difference
// to it whether the outcome is unknown for good.
Error Unknown(const Transaction& transaction, const Error& cause) {
  const bool is_for_good = cause.code == ErrorCode::kStale && !transaction.operation_id.empty();
  return MakeError(is_for_good ? ErrorCode::kStale : ErrorCode::kUnavailable,
                   "it is not known whether the transaction ran: " + cause.message);
}

Error SlotIsGone() { return MakeError(ErrorCode::kStale, "the slot that would tell is gone with its lease"); }

}  // namespace

CommitSlots::CommitSlots(SlotTransport& transport, const RetryOptions& options)
    : transport_(transport), options_(options), instance_(RandomName()) {}

CommitSlots::~CommitSlots() {
  MutexLock lock(mutex_);
  const LeaseId lease = lease_;
  lock.Unlock();
  // Where the store cannot be reached the slots go with their lease.
  if (lease != 0) static_cast<void>(transport_.TryRevokeLease(Context(), lease));
}

std::string CommitSlots::NewName() {
  MutexLock lock(mutex_);
  return instance_ + "/" + std::to_string(++names_);
}

Result<uint64_t> CommitSlots::Commit(const Context& context, const Transaction& transaction) {
  if (!transaction.operation_id.empty()) return CommitOperation(context, transaction);
  std::optional<Attempt> open;
  return CommitOnce(context, transaction, open);
}

Result<uint64_t> CommitSlots::CommitOperation(const Context& context, const Transaction& transaction) {
  const std::string& id = transaction.operation_id;
  std::optional<Attempt> open;
  MutexLock lock(mutex_);
  for (;;) {
    auto [operation, is_new] = operations_.try_emplace(id);
    if (is_new) break;
    if (operation->second.revision) return *operation->second.revision;
    if (!operation->second.in_progress) {
      open = std::exchange(operation->second.open, std::nullopt);
      operation->second.in_progress = true;
      break;
    }
    const auto has_ended = [&]() REQUIRES_LOCK(mutex_) {
      auto other = operations_.find(id);
      return other == operations_.end() || !other->second.in_progress;
    };
    if (options_.Within(context).Wait(mutex_, changed_, has_ended)) continue;
    return MakeError(ErrorCode::kUnavailable, "the same transaction is being committed, and nobody waits for it");
  }
  lock.Unlock();
  Result<uint64_t> result = CommitOnce(context, transaction, open);
  lock.Lock();
  if (result.ok() || open) {
    Operation& operation = operations_[id];
    operation.in_progress = false;
    if (result.ok()) operation.revision = *result;
    operation.open = std::move(open);
    Remember(id, operation);
  } else {
    operations_.erase(id);
  }
  changed_.NotifyAll();
  return result;
}

// Does not forget an operation whose answer is lost, or that is being tried again: it would be sent anew, and run
// twice.
void CommitSlots::Remember(const std::string& operation_id, Operation& operation) {
  if (!std::exchange(operation.is_in_order, true)) operation_order_.push_back(operation_id);
  for (size_t looks = operation_order_.size(); looks > 0 && operation_order_.size() > kOperationsRemembered; --looks) {
    std::string id = std::move(operation_order_.front());
    operation_order_.pop_front();
    auto oldest = operations_.find(id);
    if (oldest == operations_.end()) continue;
    if (oldest->second.in_progress || oldest->second.open) {
      operation_order_.push_back(std::move(id));
    } else {
      operations_.erase(oldest);
    }
  }
}

Result<uint64_t> CommitSlots::CommitCompares(const Context& context, const Transaction& transaction) {
  CAIRNFS_ASSIGN_OR_RETURN(const SlottedAnswer answer, TryUntilAnswered(context, options_, [&](const Context& limited) {
                             return transport_.TryCommit(limited, transaction, nullptr);
                           }));
  if (!answer.committed) return CompareFailed();
  return answer.revision;
}

// Sets `open` exactly when it is not known on return whether the transaction ran.
Result<uint64_t> CommitSlots::CommitOnce(const Context& context, const Transaction& transaction,
                                         std::optional<Attempt>& open) {
  if (transaction.writes.empty() && !open) return CommitCompares(context, transaction);
  Retry retry(context, options_);
  LeaseId dropped = 0;
  for (;;) {
    if (open) {
      Result<std::optional<uint64_t>> found = FindOut(*open, retry);
      if (!found.ok()) return Unknown(transaction, found.error());
      GiveBack(std::move(open->slot));
      open.reset();
      if (*found) return **found;
    }
    CAIRNFS_ASSIGN_OR_RETURN(Slot slot, TakeSlot(retry));
    open = Attempt{std::move(slot), NewName()};
    const SlotClaim claim{open->slot.name, open->slot.revision, open->name, open->slot.lease};
    Result<SlottedAnswer> answer = transport_.TryCommit(retry.context(), transaction, &claim);
    if (answer.ok() && answer->committed) {
      open->slot.revision = answer->revision;
      GiveBack(std::move(open->slot));
      open.reset();
      return answer->revision;
    }
    if (!answer.ok() && answer.error().code == ErrorCode::kUnavailable) {
      if (!retry.Wait()) return Unknown(transaction, answer.error());
      continue;
    }
    if (answer.ok() && answer->slot_value == open->name) {  // the request came twice, and ran the first time
      open->slot.revision = answer->slot_revision;
      GiveBack(std::move(open->slot));
      open.reset();
      return answer->slot_revision;
    }
    Slot used = std::move(open->slot);
    open.reset();
    // The slots' lease may have ended, on a host that slept: once more with new ones.
    const bool slot_is_gone =
        answer.ok() ? answer->slot_revision != used.revision : answer.error().code == ErrorCode::kNotFound;
    if (slot_is_gone && dropped == 0) {
      dropped = used.lease;
      DropLease(used.lease);
      continue;
    }
    if (!slot_is_gone) GiveBack(std::move(used));
    if (!answer.ok()) return answer.error();
    return CompareFailed();
  }
}

Result<std::optional<uint64_t>> CommitSlots::FindOut(Attempt& attempt, Retry& retry) {
  const SlotClaim claim{attempt.slot.name, attempt.slot.revision, kRuledOut + attempt.name, attempt.slot.lease};
  for (;;) {
    Result<SlottedAnswer> answer = transport_.TryCommit(retry.context(), Transaction(), &claim);
    if (!answer.ok()) {
      if (answer.error().code == ErrorCode::kNotFound) return SlotIsGone();
      if (answer.error().code != ErrorCode::kUnavailable || !retry.Wait()) return answer.error();
      continue;
    }
    if (answer->committed) {
      attempt.slot.revision = answer->revision;
      return std::optional<uint64_t>();
    }
    if (answer->slot_value != attempt.name && answer->slot_value != claim.value) return SlotIsGone();
    attempt.slot.revision = answer->slot_revision;
    if (answer->slot_value == claim.value) return std::optional<uint64_t>();
    return std::optional<uint64_t>(answer->slot_revision);
  }
}

Result<CommitSlots::Slot> CommitSlots::TakeSlot(Retry& retry) {
  MutexLock lock(mutex_);
  for (;;) {
    if (lease_ != 0 && Clock::Now() < lease_until_) {
      if (free_.empty()) return Slot{instance_ + "/slot" + std::to_string(++names_), 0, lease_};
      Slot slot = std::move(free_.back());
      free_.pop_back();
      return slot;
    }
    if (is_granting_) {
      if (retry.context().Wait(mutex_, changed_, [this]() REQUIRES_LOCK(mutex_) { return !is_granting_; })) continue;
      return MakeError(ErrorCode::kUnavailable, "no lease was granted in time");
    }
    is_granting_ = true;
    lock.Unlock();
    const auto sent = Clock::Now();
    Result<LeaseId> lease = transport_.TryGrantLease(retry.context(), kLeaseTtl);
    lock.Lock();
    is_granting_ = false;
    if (lease.ok()) {
      lease_ = *lease;
      lease_until_ = sent + kLeaseTtl / 2;
      free_.clear();
    }
    changed_.NotifyAll();
    if (lease.ok()) continue;
    lock.Unlock();
    if (lease.error().code != ErrorCode::kUnavailable || !retry.Wait()) return lease.error();
    lock.Lock();
  }
}

void CommitSlots::GiveBack(Slot slot) {
  MutexLock lock(mutex_);
  if (slot.lease == lease_) free_.push_back(std::move(slot));
}

void CommitSlots::DropLease(LeaseId lease) {
  MutexLock lock(mutex_);
  if (lease_ != lease) return;
  lease_ = 0;
  free_.clear();
}

}  // namespace cairnfs::kv
