// HostedBatch: transactions that a HostedStore writes to its engine together. Each sees the changes of those before it
// in the batch. Nobody else sees them until the batch is written.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kv/engine.h"
#include "kv/lease_table.h"
#include "kv/name_room.h"
#include "kv/shared_store.h"
#include "kv/slots.h"

namespace cairnfs::kv {

size_t BytesOf(const Transaction& transaction);  // of keys and values that it writes

class HostedBatch {
 public:
  // Whether a transaction that does so for this user may run; `unwritten_bytes`: of all that is in the batch so far.
  using AdmitNames = std::function<Status(NameChange change, uint32_t uid, uint64_t unwritten_bytes)>;
  struct Revisions {
    uint64_t engine = 0;  // what the engine has
    uint64_t spent = 0;   // none up to this one is given any more
  };
  // Nobody may change engine or leases while the batch is made; KeepAlive may be called.
  HostedBatch(KvEngine& engine, const LeaseTable& leases, const Revisions& revisions, AdmitNames admit)
      : engine_(engine),
        leases_(leases),
        admit_(std::move(admit)),
        spent_revision_(revisions.spent),
        revision_(revisions.engine) {}

  // `slot` may be null. kNotFound: a lease that it names has ended. These, those of AdmitNames and of the engine leave
  // the batch as it was.
  Result<SlottedAnswer> Commit(const Transaction& transaction, const SlotClaim* slot);
  void Grant(LeaseId lease, std::chrono::milliseconds ttl) { granted_[lease] = ttl; }
  // Deletes the lease's keys. Nothing when it has ended already.
  Status EndLease(LeaseId lease);

  // The revisions that the batch makes, in order, each with the events that watches are told.
  using Changes = std::vector<std::pair<uint64_t, std::vector<KvEvent>>>;

  // Ends the batch: what changes the engine makes a revision, be it one without events. So a revision tells which of
  // the store's batches there are.
  void Seal();

  bool empty() const { return entries_.empty() && granted_.empty() && ended_.empty(); }
  uint64_t revision() const { return revision_; }
  std::vector<EngineWrite> Writes() const;
  void ApplyTo(LeaseTable& leases) const;
  Changes TakeChanges() { return std::move(changes_); }

 private:
  struct Entry {
    uint64_t revision = 0;             // 0: the key does not exist
    std::optional<std::string> value;  // nullopt: deleted
    LeaseId lease = 0;
  };

  uint64_t NextRevision() const { return std::max(revision_, spent_revision_) + 1; }
  Status CheckLeases(const Transaction& transaction, const SlotClaim* slot) const;
  Result<Entry> Find(const std::string& engine_key) const;
  Result<bool> Holds(const Compare& compare) const;
  Result<bool> RangeHolds(const Compare& compare) const;
  Status CheckRoom(const Transaction& transaction) const;
  // Whether its keys and values are longer than what they replace.
  Result<bool> Lengthens(const Transaction& transaction) const;
  // The events of the transaction's writes, without those that change nothing.
  Result<std::vector<KvEvent>> EventsOf(const Transaction& transaction, uint64_t revision) const;

  KvEngine& engine_;
  const LeaseTable& leases_;
  const AdmitNames admit_;
  const uint64_t spent_revision_;
  uint64_t revision_;
  uint64_t bytes_ = 0;                                 // of the writes of its transactions
  std::map<std::string, Entry, std::less<>> entries_;  // engine key -> what the batch made of it
  std::map<LeaseId, std::chrono::milliseconds> granted_;
  std::set<LeaseId> ended_;
  Changes changes_;
};

}  // namespace cairnfs::kv
