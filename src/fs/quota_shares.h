// QuotaShares: how much this host may add to a quota beyond what is published, and how it hears of quotas.
//
// A host alone may add all that is left. Among several, each host takes a share before it accepts bytes, and says so in
// the store: no two may take the same bytes, because each compares that no other has changed its share since. What is
// published is never more than the shares allowed, so the sum of both never passes the limit. A share ends with the
// session of its host, and with it what was not published.
#pragma once

#include <map>
#include <memory>

#include "base/context.h"
#include "fs/filesystem.h"
#include "fs/quota_usage.h"
#include "kv/local_store.h"
#include "kv/shared_store.h"

namespace cairnfs::fs {

// What this host has of a quota that is not published, and what it wants to be able to have.
struct QuotaGrowth {
  meta::QuotaBytes grown, wanted;
};

class QuotaShares {
 public:
  virtual ~QuotaShares() = default;
  // From now on news of quotas go to the QuotaUsage. Once, before the filesystem is used.
  virtual Status Start() = 0;
  // How much this host may have beyond what is published: what is wanted, or less; perhaps less than it has grown.
  // Waits for the store. kNotFound: there is no such quota.
  virtual Result<meta::QuotaBytes> Take(const Context& context, InodeId quota, const QuotaGrowth& growth) = 0;
  // The session under which a share is taken. One that was taken under another has ended.
  virtual uint64_t session() const { return 0; }
  // Whether what is not used is to be given back.
  virtual bool are_taken_from_others() const { return false; }
  // Whether this host has taken some of it.
  virtual bool HasShare(InodeId /*quota*/) const { return false; }
  // Whether other hosts may give some back.
  virtual bool HaveOthers(InodeId /*quota*/) const { return false; }
};

class LocalShares final : public QuotaShares {
 public:
  // Both outlive it.
  LocalShares(kv::LocalKvStore& kv, QuotaUsage& usage) : kv_(kv), usage_(usage) {}
  ~LocalShares() override { kv_.Watch(meta::QuotasPrefix()[0], {}); }
  Status Start() override;
  Result<meta::QuotaBytes> Take(const Context& context, InodeId quota, const QuotaGrowth& growth) override;

 private:
  kv::LocalKvStore& kv_;
  QuotaUsage& usage_;
};

class SharedShares final : public QuotaShares {
 public:
  struct Parts {  // all outlive it
    kv::SharedKvStore& shared;
    kv::KvStore& store;  // the fenced one
    QuotaUsage& usage;
    std::string self;                   // this node's id
    std::function<uint64_t()> session;  // 0 between the loss of one and the next
    // Adds a compare of the session, and says with which lease its keys go.
    std::function<Result<kv::LeaseId>(kv::Transaction&)> join;
    Context until_stop;
    // The store went back to an older state: revisions, and sessions, that were seen before may mean others.
    std::function<void()> went_back;
  };
  explicit SharedShares(Parts parts) : at_(std::move(parts)) {}
  Status Start() override;
  Result<meta::QuotaBytes> Take(const Context& context, InodeId quota, const QuotaGrowth& growth) override;
  uint64_t session() const override { return at_.session(); }
  bool are_taken_from_others() const override { return true; }
  bool HasShare(InodeId quota) const override;
  bool HaveOthers(InodeId quota) const override;

 private:
  // Takes over all that there is, as of the revision or later.
  Status ReadAll(uint64_t revision);
  void ReadAnew(uint64_t revision);
  // `transaction` has what the session asks for.
  Status Put(const Context& context, InodeId quota, const QuotaUsage::Quota& known, const meta::QuotaBytes& share,
             kv::Transaction transaction, kv::LeaseId lease) REQUIRES_LOCK(mutex_);

  const Parts at_;
  Mutex mutex_;                                               // one change of a share at a time
  std::map<InodeId, kv::LeaseId> leases_ GUARDED_BY(mutex_);  // of the share that was put last
  std::unique_ptr<kv::KvWatch> watch_;
};

}  // namespace cairnfs::fs
