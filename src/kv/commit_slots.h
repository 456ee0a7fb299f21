// CommitSlots: commits to a store far away. Each runs at most once, whatever becomes of its answers (slots.h).
//
// The slots of one object are keys under a lease of an hour. Half an hour after it was granted a new lease with new
// slots takes its place, so that no slot ends while somebody asks about it, and the store forgets the old ones.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "kv/retry.h"
#include "kv/slots.h"

namespace cairnfs::kv {

// One try of a call, each. Any thread.
class SlotTransport {
 public:
  virtual ~SlotTransport() = default;
  // `slot` null: none is claimed; the transaction then has no writes. kUnavailable: it may have run, or may yet run.
  // Any other error: it did not and will not. kNotFound: a lease that it names has ended.
  virtual Result<SlottedAnswer> TryCommit(const Context& context, const Transaction& transaction,
                                          const SlotClaim* slot) = 0;
  virtual Result<LeaseId> TryGrantLease(const Context& context, std::chrono::milliseconds ttl) = 0;
  virtual Status TryRevokeLease(const Context& context, LeaseId lease) = 0;
};

class CommitSlots {
 public:
  // `transport` outlives it.
  CommitSlots(SlotTransport& transport, const RetryOptions& options);
  ~CommitSlots();  // gives its slots back, if the store can be reached
  CommitSlots(const CommitSlots&) = delete;

  // As KvStore::Commit. Any thread. When it fails with kUnavailable and the transaction has an operation id, committing
  // it again first finds out what became of it; kStale where nobody can tell any more, because the slot is gone.
  Result<uint64_t> Commit(const Context& context, const Transaction& transaction);

 private:
  struct Slot {
    std::string name;
    uint64_t revision = 0;
    LeaseId lease = 0;
  };
  // A commit that was sent and whose answer is not known.
  struct Attempt {
    Slot slot;
    std::string name;  // unique
  };
  struct Operation {
    bool in_progress = true;
    bool is_in_order = false;  // operation_order_ has it
    std::optional<uint64_t> revision;
    std::optional<Attempt> open;
  };

  Result<uint64_t> CommitOperation(const Context& context, const Transaction& transaction);
  Result<uint64_t> CommitOnce(const Context& context, const Transaction& transaction, std::optional<Attempt>& open);
  Result<uint64_t> CommitCompares(const Context& context, const Transaction& transaction);
  // The revision of the attempt, or nullopt: it did not run and never will. Its slot is up to date then. Errors: not
  // known; kStale: and never will be.
  Result<std::optional<uint64_t>> FindOut(Attempt& attempt, Retry& retry);
  Result<Slot> TakeSlot(Retry& retry);
  void GiveBack(Slot slot);
  void DropLease(LeaseId lease);
  std::string NewName();
  void Remember(const std::string& operation_id, Operation& operation) REQUIRES_LOCK(mutex_);

  SlotTransport& transport_;
  const RetryOptions options_;
  const std::string instance_;  // no two objects have the same, on any host

  Mutex mutex_;
  CondVar changed_;
  uint64_t names_ GUARDED_BY(mutex_) = 0;
  LeaseId lease_ GUARDED_BY(mutex_) = 0;  // 0: none yet
  Clock::time_point lease_until_ GUARDED_BY(mutex_){};
  bool is_granting_ GUARDED_BY(mutex_) = false;
  std::vector<Slot> free_ GUARDED_BY(mutex_);
  std::unordered_map<std::string, Operation> operations_ GUARDED_BY(mutex_);
  std::deque<std::string> operation_order_ GUARDED_BY(mutex_);  // of those that were not in progress
};

}  // namespace cairnfs::kv
