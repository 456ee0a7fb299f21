// Quotas: what this host accepts for each quota of a directory (docs/decisions/quotas.md).
//
// For each quota that is used here there is a credit: so many bytes may be accepted without a look at anything else.
// What is written takes from it, whether or not it will count. Once it is used up, it is found out what did: what files
// have beyond what is published of them. So nothing has to be given back when bytes are written over, cut off or lost.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/task_queue.h"
#include "fs/dirty_files.h"
#include "fs/inode.h"
#include "fs/quota_shares.h"
#include "fs/sync_rounds.h"
#include "fs/waits.h"

namespace cairnfs::fs {

class Trash;

// All functions: any thread.
class Quotas {
 public:
  struct Parts {  // all outlive it
    InodeTable& table;
    SyncRounds& rounds;
    DirtyFiles& files;
    meta::Namespace& names;
    Waits& waits;
    Trash& trash;
    std::chrono::milliseconds wait_max;  // for the store, and for a round
  };
  Quotas(const Parts& parts, Context until_stop) : at_(parts), until_stop_(std::move(until_stop)) {}
  ~Quotas() { Stop(); }
  // Once, before Start.
  void SetShares(std::unique_ptr<QuotaShares> shares) { shares_ = std::move(shares); }
  QuotaUsage& usage() { return usage_; }
  Status Start();
  // From now on nobody is kept waiting: what is not known yet counts as not to be found out.
  void EndWaits();
  void Stop();

  bool any() const { return usage_.any(); }
  // Takes so many bytes of the credit. False: there is not enough of it; call Settle. Bytes that are taken are to be in
  // the content before the inode's lock is released.
  bool TakeCredit(InodeId quota, const meta::QuotaBytes& bytes);
  // Who lacked so many bytes of credit.
  struct Lack {
    InodeId quota;
    meta::QuotaBytes bytes;
    std::function<bool()> attempt;              // takes credit, and goes on; false: there is not enough
    std::function<void(const Error&)> refused;  // kQuotaExceeded, kInterrupted, or why it cannot be found out
  };
  // Calls `attempt` at once. If that was in vain, finds out how much there is left, and calls it again while there may
  // be enough, or `refused`, on another thread. Waits for a round if it has to, for what other hosts give back, and
  // until the trash is emptied of what counts. Those that wait for the same quota share one look.
  void Settle(const Context& context, Lack lack);
  // The same, for what CheckMayCreate has refused.
  void AwaitMayCreate(const Context& context, InodeId quota, Done<void> done);
  // For a file that counts once the caller's transaction is done: takes credit, waiting as Settle does, and fails as
  // that does.
  Status Promise(const Context& context, InodeId quota, InodeId file, const meta::QuotaBytes& bytes);
  // After Promise: the transaction is done, or is not. Of what is done it waits for the news.
  enum class Kept { kNo, kYes };
  void EndPromise(InodeId file, Kept kept);
  // Revisions and sessions that were seen before may mean others by now.
  void ForgetCredits();
  // kQuotaExceeded: nothing more fits into the quota, by what is published.
  Status CheckMayCreate(InodeId quota) const;
  Error Exceeded(InodeId quota) const;

 private:
  struct Credit {
    meta::QuotaBytes left;
    uint64_t record_revision = 0;  // of the limits for which that holds
    uint64_t session = 0;          // under which it was taken
    bool used = false;             // since it was last looked whether it is
    // After it was settled in vain: so long nobody has a round for it again, or waits for other hosts, unless something
    // is taken, published or freed.
    Clock::time_point vain_until{};
    meta::QuotaBytes vain_at;
    bool frees = false;       // a round may: files have less than what is published of them
    bool vain_frees = false;  // then too, and it did not
  };
  struct Waiting {
    meta::QuotaBytes bytes;
    Done<void> done;
  };
  struct Promised {
    InodeId quota;
    meta::QuotaBytes bytes;
  };
  bool Has(const Credit& credit, const QuotaUsage::Standing& standing, const meta::QuotaBytes& bytes) const;
  bool Has(InodeId quota, const meta::QuotaBytes& bytes) const;
  bool Take(Credit& credit, const QuotaUsage::Standing& standing, const meta::QuotaBytes& bytes) REQUIRES_LOCK(mutex_);
  void SettleBatch(TaskQueue& queue, InodeId quota);
  void SettleOnce(InodeId quota, const meta::QuotaBytes& bytes, Done<void> done);
  void SettleAgain(const Context& context, const std::shared_ptr<const Lack>& lack, int tries_left);
  // Whatever is taken afterwards: there may be enough, or is not. Another error: it was not found out.
  Status SettleNow(InodeId quota, const meta::QuotaBytes& bytes);
  Status AwaitRound(const Context& context);
  Status RenewAmongOthers(const Context& context, InodeId quota, const meta::QuotaBytes& bytes);
  bool EmptyTrash(const Context& context, InodeId quota, const meta::QuotaBytes& bytes);
  void NoteVain(InodeId quota, const meta::QuotaBytes& used);
  bool IsVain(InodeId quota) const;
  enum class Wants { kMore, kNothing };
  Status Renew(const Context& context, InodeId quota, const meta::QuotaBytes& bytes, Wants wants);
  Status RenewInTime(const Context& context, InodeId quota, const meta::QuotaBytes& bytes);
  void AwaitOwnNews() const;
  struct Growth {
    meta::QuotaBytes bytes;
    bool frees = false;  // as of a credit
  };
  Growth FindGrowth(InodeId quota);
  void GiveBack();

  const Parts at_;
  const Context until_stop_;
  QuotaUsage usage_;
  std::unique_ptr<QuotaShares> shares_;

  mutable Mutex mutex_;                                             // after inodes', before that of `usage_`
  std::unordered_map<InodeId, Credit> credits_ GUARDED_BY(mutex_);  // few: quotas that are used here
  // Of each quota that a task settles, or is about to, those that wait for the next one: requests of the kernel.
  std::map<InodeId, std::vector<Waiting>> waiting_ GUARDED_BY(mutex_);
  std::map<InodeId, Promised> promised_ GUARDED_BY(mutex_);  // by file
  Mutex renewing_;                                           // held while a credit is found out
  std::unique_ptr<TaskQueue> queue_;
  std::stop_source stop_;
  std::thread give_back_;
};

}  // namespace cairnfs::fs
