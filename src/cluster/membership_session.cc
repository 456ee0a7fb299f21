// Taking a session, losing it, taking another one.
#include "base/clock.h"
#include "base/log.h"
#include "cluster/membership_impl.h"

namespace cairnfs::cluster {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr milliseconds kForeignPoll{100};  // how often to look whether a foreign session has ended

Error Stopping() { return MakeError(ErrorCode::kUnavailable, "the daemon stops"); }

}  // namespace

void PutUnderLease(kv::Transaction& transaction, std::string key, std::string value, kv::LeaseId lease) {
  transaction.writes.push_back(kv::KvWrite{std::move(key), std::move(value), lease});
}

Result<MembershipImpl::OwnKeys> MembershipImpl::ReadOwnKeys() {
  const std::vector<kv::KvSpan> spans{{Key(MemberKey::kNode), "", 0},
                                      {Key(MemberKey::kSession), "", 0},
                                      {Key(MemberKey::kRemoved), "", 0},
                                      {Key(MemberKey::kPlace), "", 0}};
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot snapshot, store_.Read(context_, spans));
  OwnKeys own;
  if (!snapshot.ranges[0].entries.empty()) own.node = std::move(snapshot.ranges[0].entries[0]);
  if (!snapshot.ranges[2].entries.empty()) return WasRemoved(options_.self.id);
  if (!snapshot.ranges[3].entries.empty()) own.place = std::move(snapshot.ranges[3].entries[0]);
  if (snapshot.ranges[1].entries.empty()) return own;
  own.session = std::move(snapshot.ranges[1].entries[0]);
  Result<SessionRecord> record = SessionRecord::Decode(own.session->value);
  if (record.ok()) own.session_record = std::move(*record);
  return own;
}

NodeRecord MembershipImpl::OwnRecord(const std::optional<PlaceRecord>& place) const {
  const NodeInfo& self = options_.self;
  NodeRecord record{self.name, self.address, self.domain, self.weight};
  if (!place) return record;
  if (options_.unconfigured.name && place->takes_name) record.name = place->name;
  if (options_.unconfigured.domain) record.domain = place->domain;
  if (options_.unconfigured.weight) record.weight = place->weight;
  return record;
}

// A process that rejoins lives itself, and so may the one that took its session over: two containers on one kernel may
// each have a copy of the directory.
bool MembershipImpl::MayReplace(const OwnKeys& own, Taking taking) const {
  if (!own.session || own.session_record.incarnation == incarnation_) return true;
  return taking == Taking::kJoin && own.session_record.place == place_;
}

Result<MembershipImpl::OwnKeys> MembershipImpl::WaitForForeignSession(Taking taking) {
  const nanoseconds deadline = Clock::SinceBoot() + 2 * options_.lease;
  for (;;) {
    CAIRNFS_ASSIGN_OR_RETURN(OwnKeys own, ReadOwnKeys());
    if (MayReplace(own, taking)) return own;
    if (Clock::SinceBoot() > deadline) {
      return MakeError(ErrorCode::kAlreadyExists,
                       "another daemon runs as node " + options_.self.id.ToHex() +
                           ": the data directory is a copy of its, or has moved while it still runs; stop the other "
                           "one, or let this host begin with an empty directory");
    }
    if (!context_.Sleep(kForeignPoll)) return Stopping();
  }
}

Result<uint64_t> MembershipImpl::CommitSession(const OwnKeys& own, kv::LeaseId lease) {
  std::optional<PlaceRecord> place;
  if (own.place) {
    Result<PlaceRecord> decoded = PlaceRecord::Decode(own.place->value);
    if (!decoded.ok()) return decoded.error();
    place = *std::move(decoded);
  }
  const std::string record = OwnRecord(place).Encode();
  kv::Transaction transaction;
  transaction.IfRevision(Key(MemberKey::kSession), own.session ? own.session->revision : 0);
  transaction.IfRevision(Key(MemberKey::kNode), own.node ? own.node->revision : 0);
  transaction.IfAbsent(Key(MemberKey::kRemoved));
  if (!own.node || own.node->value != record) transaction.Put(Key(MemberKey::kNode), record);
  transaction.Delete(Key(MemberKey::kFull)).Delete(Key(MemberKey::kOut)).Delete(Key(MemberKey::kJoined));
  PutUnderLease(transaction, Key(MemberKey::kSession), SessionRecord{incarnation_, lease, place_}.Encode(), lease);
  return store_.Commit(context_, transaction);
}

Result<kv::LeaseId> MembershipImpl::TakeSession(Taking taking) {
  for (int attempt = 1;; attempt++) {
    CAIRNFS_ASSIGN_OR_RETURN(const OwnKeys own, WaitForForeignSession(taking));
    if (taking == Taking::kJoin && attempt == 1) has_registered_ = !own.node;
    const nanoseconds sent = Clock::SinceBoot();
    CAIRNFS_ASSIGN_OR_RETURN(const kv::LeaseId lease, store_.GrantLease(context_, options_.lease));
    Result<uint64_t> revision = CommitSession(own, lease);
    if (revision.ok()) {
      if (!own.node && taking == Taking::kRejoin) {
        spdlog::warn(
            "this node was not in the list of nodes any more, and is again: it was forgotten while it was "
            "away, or the metadata went back to before it joined");
      }
      state_.Begin(Session{Key(MemberKey::kSession), *revision, lease},
                   sent + options_.lease - options_.lease / kLeaseMarginDivisor);
      return own.session_record.lease;
    }
    // When the answer was lost and it did run, the next attempt finds a session of this incarnation.
    // A store that was slow may have let the lease end before the key came.
    const ErrorCode code = revision.error().code;
    const bool is_late = code == ErrorCode::kNotFound;
    if ((code != ErrorCode::kConflict && !is_late) || attempt == kMemberAttemptsMax) return revision.error();
    if (!is_late) (void)store_.RevokeLease(context_, lease).ok();
  }
}

void MembershipImpl::Deregister(const Context& context, const Session& session) {
  kv::Transaction transaction;
  transaction.IfRevision(session.key, session.revision);
  for (MemberKey kind : {MemberKey::kNode, MemberKey::kSession, MemberKey::kFull, MemberKey::kPlace})
    transaction.Delete(Key(kind));
  if (auto removed = store_.Commit(context, transaction); !removed.ok()) {
    spdlog::warn("this node stays in the list of nodes, though it was not started: {}", removed.error().message);
  }
}

// Also of a session that is lost already, for another reason: a restored store may first say that its lease ended.
void MembershipImpl::NoteWentBack(uint64_t number) {
  uint64_t counted = went_back_number_;
  while (counted < number && !went_back_number_.compare_exchange_weak(counted, number)) {
  }
  if (counted < number) went_back_++;
}

void MembershipImpl::Lose(uint64_t number, const Loss& loss) {
  if (loss.went_back) NoteWentBack(number);
  if (!state_.Lose(number, loss.why)) return;
  sessions_lost_++;
  spdlog::warn("this host's session with the cluster is lost: {}", loss.why);
  MutexLock lock(mutex_);
  wakes_ = true;
  wake_.NotifyAll();
  lost_untold_ = !lost_;
  if (lost_) lost_thread_->Post(lost_);
}

void MembershipImpl::OnLost(std::function<void()> lost) {
  MutexLock lock(mutex_);
  lost_ = std::move(lost);
  if (lost_ && lost_untold_) {
    lost_untold_ = false;
    lost_thread_->Post(lost_);
  }
}

Status MembershipImpl::Rejoin() {
  MutexLock rejoin(rejoin_mutex_);
  uint64_t told_number, told_revision;
  {
    MutexLock lock(mutex_);
    if (context_.IsStopped()) return Stopping();
    told_number = watch_number_;
    told_revision = watch_revision_;
  }
  if (state_.Current()) return {};
  CAIRNFS_ASSIGN_OR_RETURN(const kv::LeaseId replaced, TakeSession(Taking::kRejoin));
  // A new revision is above all that were told, but in a store that went back.
  const std::optional<Session> taken = state_.Current();
  if (taken && taken->revision <= told_revision) NoteWentBack(told_number);
  {
    MutexLock lock(mutex_);
    lost_untold_ = false;
  }
  if (replaced != 0) (void)store_.RevokeLease(context_, replaced).ok();
  // The old watch may yet find out that the store went back to the state that the new session began with.
  if (const std::optional<Session> session = state_.Current()) {
    if (Status begun = BeginWatch(session->number, session->revision); !begun.ok()) {
      spdlog::warn("the cluster's nodes are watched as before: {}", begun.error().message);
    }
  }
  if (Status read = Reread(); !read.ok()) {
    spdlog::warn("the cluster's nodes cannot be read now: {}", read.error().message);
    MutexLock lock(mutex_);
    must_reread_ = true;
  }
  MutexLock lock(mutex_);
  wakes_ = true;
  wake_.NotifyAll();
  return {};
}

}  // namespace cairnfs::cluster
