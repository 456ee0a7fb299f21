// Membership: start, end, and what callers ask for.
#include <cmath>
#include <fstream>
#include <random>
#include <system_error>

#include "cluster/membership_impl.h"

namespace cairnfs::cluster {
namespace {

uint64_t RandomU64() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

Error Invalid(std::string message) { return MakeError(ErrorCode::kInvalidArgument, std::move(message)); }

Error NoSuchNode(const NodeId& id) { return MakeError(ErrorCode::kNotFound, "there is no node " + id.ToHex()); }

Error NotDrained(const NodeId& id) {
  return Invalid("node " + id.ToHex() +
                 " has not given away what it has: mount it and call cairnfs node drain; if its disk is lost, cairnfs "
                 "node remove --lost");
}

Status CheckOptions(const MembershipOptions& options) {
  const NodeInfo& self = options.self;
  if (self.id == NodeId()) return Invalid("a node's id must not be all zero");
  for (const std::string* text : {&self.name, &self.address, &self.domain, &options.place}) {
    if (text->size() > kMemberTextBytesMax) return Invalid("a node's name, address and domain have 1024 bytes at most");
  }
  if (!std::isfinite(self.weight) || self.weight < 0) return Invalid("a node's weight must be a number from 0 up");
  if (options.renew_every.count() <= 0 || options.renew_every * 2 > options.lease) {
    return Invalid("a lease must be renewed at least twice in its time");
  }
  return {};
}

}  // namespace

// --- Start and end. ---

MembershipImpl::MembershipImpl(kv::SharedKvStore& store, const MembershipOptions& options)
    : store_(store),
      options_(options),
      place_(options.place.empty() ? PlaceOfThisKernel() : options.place),
      incarnation_(RandomU64()),
      state_(options.answers),
      view_(std::make_shared<const View>()),
      subscribers_(std::make_unique<Subscribers>([this] { return view(); })),
      lost_thread_(std::make_unique<TaskQueue>("cluster-lost", 1)),
      chores_thread_(std::make_unique<TaskQueue>("cluster-chores", 1)) {}

Status MembershipImpl::Start() {
  CAIRNFS_ASSIGN_OR_RETURN(const kv::LeaseId replaced, TakeSession(Taking::kJoin));
  CAIRNFS_RETURN_IF_ERROR(Reread());
  uint64_t revision;
  {
    MutexLock lock(mutex_);
    revision = table_.revision();
  }
  thread_ = std::thread([this] { Run(); });
  CAIRNFS_RETURN_IF_ERROR(BeginWatch(/*number=*/1, revision));
  // What else the dead process held ends with its lease: now, and not in some seconds.
  if (replaced != 0) (void)store_.RevokeLease(context_, replaced).ok();
  return {};
}

MembershipImpl::~MembershipImpl() {
  {
    MutexLock lock(mutex_);
    lost_ = nullptr;
  }
  stop_.request_stop();
  if (thread_.joinable()) thread_.join();
  chores_thread_.reset();
  {
    MutexLock rejoin(rejoin_mutex_);  // which replaces it
    watch_.reset();
  }
  lost_thread_.reset();
  subscribers_.reset();
  // A store that cannot be reached would be tried for long; the lease ends by itself, no later than that.
  const std::optional<Session> session = state_.Current();
  if (!session || renewal_fails_ || !state_.LeaseHolds()) return;
  const Context within_lease = Context().WithTimeout(options_.lease);
  if (forgets_at_end_ && has_registered_) Deregister(within_lease, *session);
  (void)store_.RevokeLease(within_lease, session->lease).ok();
}

// --- What callers ask for. ---

void MembershipImpl::SetFull(bool full) {
  MutexLock lock(mutex_);
  if (full_wanted_ == full) return;
  full_wanted_ = full;
  wakes_ = true;
  wake_.NotifyAll();
}

void MembershipImpl::SetEmpty(bool empty, uint64_t drain) {
  MutexLock lock(mutex_);
  if (is_empty_ == empty && empty_drain_ == drain) return;
  is_empty_ = empty;
  empty_drain_ = drain;
  wakes_ = true;
  wake_.NotifyAll();
}

Status MembershipImpl::SetDrain(const NodeId& id, Drain drain) {
  for (int attempt = 1;; attempt++) {
    CAIRNFS_ASSIGN_OR_RETURN(const Session own, session());
    const std::vector<kv::KvSpan> spans{{KeyOf(MemberKey::kNode, id), "", 0}, {KeyOf(MemberKey::kDrain, id), "", 0}};
    CAIRNFS_ASSIGN_OR_RETURN(const kv::KvSnapshot snapshot, store_.Read(context_, spans));
    if (snapshot.ranges[0].entries.empty()) return NoSuchNode(id);
    const bool is_drained = !snapshot.ranges[1].entries.empty();
    if (is_drained == (drain == Drain::kBegin)) return {};
    kv::Transaction transaction;
    transaction.IfRevision(own.key, own.revision);
    transaction.IfExists(KeyOf(MemberKey::kNode, id));
    if (drain == Drain::kBegin) {
      transaction.IfAbsent(KeyOf(MemberKey::kDrain, id)).Put(KeyOf(MemberKey::kDrain, id), DrainRecord().Encode());
    } else {
      transaction.Delete(KeyOf(MemberKey::kDrain, id));
    }
    const Result<uint64_t> revision = store_.Commit(context_, transaction);
    if (revision.ok()) return {};
    if (revision.error().code != ErrorCode::kConflict || attempt == kMemberAttemptsMax) return revision.error();
  }
}

// Of another node, which is to be removed: it was there or has joined, and is not up.
struct Leaving {
  std::optional<kv::KvEntry> node, drain, joined;
};

static Result<Leaving> ReadLeaving(kv::SharedKvStore& store, const Context& context, const NodeId& id) {
  const std::vector<kv::KvSpan> spans{{KeyOf(MemberKey::kNode, id), "", 0},
                                      {SessionKey(id), "", 0},
                                      {KeyOf(MemberKey::kDrain, id), "", 0},
                                      {KeyOf(MemberKey::kJoined, id), "", 0}};
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot snapshot, store.Read(context, spans));
  const auto take = [&](size_t range) {
    auto& entries = snapshot.ranges[range].entries;
    return entries.empty() ? std::optional<kv::KvEntry>() : std::make_optional(std::move(entries[0]));
  };
  Leaving leaving{take(0), take(2), take(3)};
  if (!leaving.node && !leaving.joined) return NoSuchNode(id);
  if (take(1)) return MakeError(ErrorCode::kBusy, "node " + id.ToHex() + " is up: unmount it first");
  return leaving;
}

static void AddRemoval(const NodeId& id, const Leaving& leaving, kv::Transaction& transaction) {
  const auto compare = [&](MemberKey kind, const std::optional<kv::KvEntry>& entry) {
    transaction.IfRevision(KeyOf(kind, id), entry ? entry->revision : 0);
  };
  compare(MemberKey::kNode, leaving.node);
  compare(MemberKey::kDrain, leaving.drain);
  compare(MemberKey::kJoined, leaving.joined);
  transaction.IfAbsent(SessionKey(id));
  for (MemberKey kind : {MemberKey::kNode, MemberKey::kFull, MemberKey::kOut, MemberKey::kDrain, MemberKey::kPlace,
                         MemberKey::kJoined}) {
    transaction.Delete(KeyOf(kind, id));
  }
  transaction.Put(KeyOf(MemberKey::kRemoved, id), "");
}

// One that joined and was never there has nothing.
Status MembershipImpl::Remove(const NodeId& id, Removal removal) {
  for (int attempt = 1;; attempt++) {
    CAIRNFS_ASSIGN_OR_RETURN(const Session own, session());
    CAIRNFS_ASSIGN_OR_RETURN(const Leaving leaving, ReadLeaving(store_, context_, id));
    const Result<DrainRecord> drained = leaving.drain ? DrainRecord::Decode(leaving.drain->value) : DrainRecord();
    const bool has_nothing = !leaving.node || (drained.ok() && drained->is_empty);
    if (removal == Removal::kDrained && !has_nothing) return NotDrained(id);
    kv::Transaction transaction;
    transaction.IfRevision(own.key, own.revision);
    AddRemoval(id, leaving, transaction);
    const Result<uint64_t> revision = store_.Commit(context_, transaction);
    if (revision.ok()) return {};
    if (revision.error().code != ErrorCode::kConflict || attempt == kMemberAttemptsMax) return revision.error();
  }
}

Status MembershipImpl::Replace(const NodeId& id, PlaceName name) {
  for (int attempt = 1;; attempt++) {
    CAIRNFS_ASSIGN_OR_RETURN(const Session own, session());
    CAIRNFS_ASSIGN_OR_RETURN(const OwnKeys keys, ReadOwnKeys());
    const auto known = keys.place ? PlaceRecord::Decode(keys.place->value) : Result<PlaceRecord>(PlaceRecord());
    const Result<Leaving> leaving = ReadLeaving(store_, context_, id);
    if (!leaving.ok()) {
      const bool is_done = leaving.error().code == ErrorCode::kNotFound && known.ok() && known->of == id;
      return is_done ? Status() : Status(leaving.error());
    }
    if (!leaving->node) return NoSuchNode(id);  // it was never there, and has no place
    CAIRNFS_ASSIGN_OR_RETURN(const NodeRecord old, NodeRecord::Decode(leaving->node->value));
    const PlaceRecord place{id, name == PlaceName::kTaken, old.name, old.domain, old.weight};
    kv::Transaction transaction;
    transaction.IfRevision(own.key, own.revision);
    AddRemoval(id, *leaving, transaction);
    transaction.Put(Key(MemberKey::kPlace), place.Encode());
    transaction.Put(Key(MemberKey::kNode), OwnRecord(place).Encode());
    const Result<uint64_t> revision = store_.Commit(context_, transaction);
    if (revision.ok()) return {};
    if (revision.error().code != ErrorCode::kConflict || attempt == kMemberAttemptsMax) return revision.error();
  }
}

MembershipStats MembershipImpl::stats() const {
  MembershipStats stats;
  stats.sessions_lost_total = sessions_lost_;
  stats.went_back_total = went_back_;
  stats.renewals_total = renewals_;
  stats.renewals_failed_total = renewals_failed_;
  stats.session_waits = state_.waiting_count();
  return stats;
}

std::string PlaceOfThisKernel() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  return !boot_id.empty() ? boot_id : std::to_string(RandomU64());
}

Result<std::unique_ptr<Membership>> Membership::Join(kv::SharedKvStore& store, const MembershipOptions& options) {
  CAIRNFS_RETURN_IF_ERROR(CheckOptions(options));
  try {
    auto membership = std::make_unique<MembershipImpl>(store, options);
    CAIRNFS_RETURN_IF_ERROR(membership->Start());
    return std::unique_ptr<Membership>(std::move(membership));
  } catch (const std::system_error& error) {
    return MakeError(ErrorCode::kUnavailable, std::string("no thread can be started: ") + error.what());
  }
}

}  // namespace cairnfs::cluster
