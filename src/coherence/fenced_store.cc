#include "coherence/fenced_store.h"

#include <algorithm>

#include "base/failpoint.h"
#include "base/thread_annotations.h"
#include "cluster/records.h"

namespace cairnfs::coherence {
namespace {

// Leaves the fence out: commits neither wait until the session is known to live nor compare it, and a compare of it
// that the caller made is dropped. A host that was cut off can publish what nobody waits for any more.
Failpoint skip_session_compare("cluster.skip_session_compare", Failpoint::Kind::kSkippable);

// What the compare of the session key takes of a transaction's space, with a store's own framing of it.
constexpr size_t kFenceBytes = 256;

class FencedStore final : public kv::KvStore {
 public:
  FencedStore(kv::SharedKvStore& store, cluster::Membership& membership, const FencedStoreOptions& options)
      : store_(store), membership_(membership), options_(options) {}

  Result<std::optional<kv::KvEntry>> Get(const Context& context, std::string_view key) override {
    return store_.Get(context, key);
  }
  Result<kv::KvRange> Range(const Context& context, std::string_view begin, std::string_view end,
                            size_t limit) override;
  Result<kv::KvSnapshot> Read(const Context& context, std::span<const kv::KvSpan> spans) override;
  Result<uint64_t> Commit(const Context& context, const kv::Transaction& transaction) override;
  Status Sync(const Context& context) override { return store_.Sync(context); }
  kv::KvLimits limits() const override;

 private:
  // What of a store's revision was known when a call began.
  struct Before {
    uint64_t number;  // of the session under which `revision` was seen
    uint64_t revision;
    std::optional<cluster::Membership::Session> session;
  };
  Before Begin(std::optional<cluster::Membership::Session> session) EXCLUDES_LOCK(mutex_);
  Before Begin() EXCLUDES_LOCK(mutex_);
  // Every answer is of a revision that is not less than those that were known when it was asked for.
  Status CheckRevision(const Before& before, uint64_t revision) EXCLUDES_LOCK(mutex_);
  Result<uint64_t> CommitUnfenced(const Context& context, kv::Transaction transaction);
  Result<uint64_t> ExplainRefusal(const Context& context, const cluster::Membership::Session& session, Error error);

  kv::SharedKvStore& store_;
  cluster::Membership& membership_;
  const FencedStoreOptions options_;
  Mutex mutex_;
  // The highest revision that was seen under the newest session. Earlier ones' may be of a state that the store went
  // back from, which is no fault of a session that began after that.
  uint64_t number_ GUARDED_BY(mutex_) = 0;
  uint64_t revision_ GUARDED_BY(mutex_) = 0;
};

FencedStore::Before FencedStore::Begin(std::optional<cluster::Membership::Session> session) {
  MutexLock lock(mutex_);
  if (session && session->number > number_) {
    number_ = session->number;
    revision_ = session->revision;
  }
  // A newer session's revisions say nothing about the one that this call goes by.
  if (session && session->number < number_) return Before{session->number, session->revision, std::move(session)};
  return Before{number_, revision_, std::move(session)};
}

FencedStore::Before FencedStore::Begin() {
  Result<cluster::Membership::Session> session = membership_.session();
  return Begin(session.ok() ? std::optional(*std::move(session)) : std::nullopt);
}

Status FencedStore::CheckRevision(const Before& before, uint64_t revision) {
  if (revision < before.revision) {
    const std::string why = "the cluster's store went back from revision " + std::to_string(before.revision) + " to " +
                            std::to_string(revision) + ", as by a backup that was restored";
    {
      MutexLock lock(mutex_);
      // Known now: not to be found again by calls without a session.
      if (number_ == before.number && revision_ == before.revision) revision_ = revision;
    }
    if (before.session) membership_.ReportLost(*before.session, {.why = why, .went_back = true});
    return MakeError(ErrorCode::kStale, why);
  }
  MutexLock lock(mutex_);
  // A call that began before the store went back must not bring back what was known then.
  if (number_ == before.number && revision_ >= before.revision) revision_ = std::max(revision_, revision);
  return {};
}

Result<kv::KvRange> FencedStore::Range(const Context& context, std::string_view begin, std::string_view end,
                                       size_t limit) {
  const Before before = Begin();
  Result<kv::KvRange> range = store_.Range(context, begin, end, limit);
  if (range.ok()) CAIRNFS_RETURN_IF_ERROR(CheckRevision(before, range->revision));
  return range;
}

Result<kv::KvSnapshot> FencedStore::Read(const Context& context, std::span<const kv::KvSpan> spans) {
  const Before before = Begin();
  Result<kv::KvSnapshot> snapshot = store_.Read(context, spans);
  if (snapshot.ok()) CAIRNFS_RETURN_IF_ERROR(CheckRevision(before, snapshot->revision));
  return snapshot;
}

Result<uint64_t> FencedStore::CommitUnfenced(const Context& context, kv::Transaction transaction) {
  const std::string own = cluster::KeyOf(cluster::MemberKey::kSession, membership_.self());
  std::erase_if(transaction.compares, [&](const kv::Compare& compare) { return compare.key == own; });
  return store_.Commit(context, transaction);
}

Result<uint64_t> FencedStore::Commit(const Context& context, const kv::Transaction& transaction) {
  if (skip_session_compare.PassOrSkip()) return CommitUnfenced(context, transaction);
  CAIRNFS_ASSIGN_OR_RETURN(const cluster::Membership::Session session,
                           membership_.WaitForSession(context.WithTimeout(options_.wait_max)));
  const Before before = Begin(session);
  kv::Transaction fenced = transaction;
  fenced.IfRevision(session.key, session.revision);
  Result<uint64_t> revision = store_.Commit(context, fenced);
  if (revision.ok()) {
    // The answer to a second commit of the same id is the first one's, which may be old.
    if (transaction.operation_id.empty()) CAIRNFS_RETURN_IF_ERROR(CheckRevision(before, *revision));
    return revision;
  }
  // kNotFound: the transaction writes under a lease that has ended, perhaps the session's.
  const ErrorCode code = revision.error().code;
  // Nothing may be laid over what may have run, and nobody can tell any more: only a new session can go on.
  if (code == ErrorCode::kStale) membership_.ReportLost(session, {revision.error().message});
  if (code != ErrorCode::kConflict && code != ErrorCode::kNotFound) return revision;
  return ExplainRefusal(context, session, revision.error());
}

Result<uint64_t> FencedStore::ExplainRefusal(const Context& context, const cluster::Membership::Session& session,
                                             Error error) {
  Result<std::optional<kv::KvEntry>> entry = store_.Get(context, session.key);
  // The transaction certainly did not run; a caller that tries again is fenced again.
  if (!entry.ok()) return error;
  if (entry->has_value() && (*entry)->revision == session.revision) return error;
  const std::string why = entry->has_value() ? "another process took it over" : "its lease ended, or it was revoked";
  membership_.ReportLost(session, {why});
  return MakeError(ErrorCode::kStale, "this host's session with the cluster is lost: " + why);
}

kv::KvLimits FencedStore::limits() const {
  kv::KvLimits limits = store_.limits();
  limits.operations_per_transaction_max -= std::min<size_t>(limits.operations_per_transaction_max, 1);
  limits.transaction_bytes_max -= std::min(limits.transaction_bytes_max, kFenceBytes);
  return limits;
}

}  // namespace

std::unique_ptr<kv::KvStore> MakeFencedStore(kv::SharedKvStore& store, cluster::Membership& membership,
                                             const FencedStoreOptions& options) {
  return std::make_unique<FencedStore>(store, membership, options);
}

}  // namespace cairnfs::coherence
