#include "cluster/membership.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <system_error>
#include <thread>

#include "base/log.h"
#include "base/task_queue.h"
#include "cluster/boot_clock.h"
#include "cluster/node_table.h"
#include "cluster/records.h"
#include "cluster/session_state.h"
#include "cluster/subscribers.h"

namespace cairnfs::cluster {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr size_t kTextBytesMax = 1024;     // of a name, an address, a domain
constexpr int kAttemptsMax = 20;           // of a transaction that conflicts
constexpr size_t kOutFindersMax = 5;       // beyond this rank all try at once when nobody before them did
constexpr milliseconds kForeignPoll{100};  // how often to look whether a foreign session has ended
constexpr int kLeaseMarginDivisor = 20;    // two clocks may differ in speed by this part of a lease

uint64_t RandomU64() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

Timestamp WallClock() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(now);
  return {seconds.count(), static_cast<uint32_t>(std::chrono::duration_cast<nanoseconds>(now - seconds).count())};
}

Error Invalid(std::string message) { return MakeError(ErrorCode::kInvalidArgument, std::move(message)); }

Status CheckOptions(const MembershipOptions& options) {
  const NodeInfo& self = options.self;
  if (self.id == NodeId()) return Invalid("a node's id must not be all zero");
  for (const std::string* text : {&self.name, &self.address, &self.domain, &options.place}) {
    if (text->size() > kTextBytesMax) return Invalid("a node's name, address and domain have 1024 bytes at most");
  }
  if (!std::isfinite(self.weight) || self.weight < 0) return Invalid("a node's weight must be a number from 0 up");
  if (options.renew_every.count() <= 0 || options.renew_every * 2 > options.lease) {
    return Invalid("a lease must be renewed at least twice in its time");
  }
  return {};
}

void PutUnderLease(kv::Transaction& transaction, std::string key, std::string value, kv::LeaseId lease) {
  transaction.writes.push_back(kv::KvWrite{std::move(key), std::move(value), lease});
}

class MembershipImpl final : public Membership {
 public:
  MembershipImpl(kv::SharedKvStore& store, const MembershipOptions& options)
      : store_(store),
        options_(options),
        place_(options.place.empty() ? PlaceOfThisKernel() : options.place),
        incarnation_(RandomU64()),
        state_(options.patience),
        view_(std::make_shared<const View>()),
        subscribers_(std::make_unique<Subscribers>([this] { return view(); })),
        lost_thread_(std::make_unique<TaskQueue>("cluster-lost", 1)),
        chores_thread_(std::make_unique<TaskQueue>("cluster-chores", 1)) {}
  ~MembershipImpl() override;
  Status Start();

  const NodeId& self() const override { return options_.self.id; }
  ViewPtr view() const override;
  std::shared_ptr<void> OnChange(std::function<void(const ViewPtr&)> changed) override {
    return subscribers_->Add(std::move(changed));
  }
  Result<Session> session() const override { return state_.Get(); }
  Result<Session> WaitForSession(milliseconds wait_max) const override { return state_.Wait(wait_max); }
  bool LeaseHolds() const override { return state_.LeaseHolds(); }
  void OnLost(std::function<void()> lost) override;
  Status Rejoin() override;
  void ReportLost(const Session& session, const std::string& why) override { Lose(session.number, why); }
  void SetFull(bool full) override;
  Status Forget(const NodeId& id) override;
  MembershipStats stats() const override;

 private:
  std::string Key(MemberKey kind) const { return KeyOf(kind, options_.self.id); }

  // --- Taking a session. ---
  struct OwnKeys {
    std::optional<kv::KvEntry> node, session;
    SessionRecord session_record;  // empty when there is none, or it does not decode
  };
  Result<OwnKeys> ReadOwnKeys();
  bool MayReplace(const OwnKeys& own, bool joins) const;
  Result<OwnKeys> WaitForForeignSession(bool joins);
  // The lease of the session that was replaced, 0 if none was.
  Result<kv::LeaseId> TakeSession(bool joins);
  Result<uint64_t> CommitSession(const OwnKeys& own, kv::LeaseId lease);
  void Lose(uint64_t number, const std::string& why);

  // --- What the store tells. ---
  Status Reread();
  // Tells of what comes after the session began; in place of the watch of the session before.
  Status BeginWatch(uint64_t number, uint64_t revision);
  // `number`: of the session with which the watch began.
  void TakeEvents(uint64_t number, std::vector<kv::KvEvent> events, uint64_t revision);
  void WatchLost(uint64_t number, uint64_t revision, bool went_back);
  std::optional<std::string> WhyOwnSessionIsGone(const Session& session) const REQUIRES_LOCK(mutex_);
  void Publish() REQUIRES_LOCK(mutex_);

  // --- On the thread that renews: nothing there may wait for the store but the renewals. ---
  void Run();
  void Tick();
  bool Renew(const Session& session);
  nanoseconds PassedSinceRenewal(const Session& session);
  // --- On the thread of chores. ---
  // `session`: if it was renewed just now, `passed` after it was before.
  void DoChores(const std::optional<Session>& session, nanoseconds passed);
  // Each of them may wait for the store for long: the end waits for one at most.
  bool IsStopping() const EXCLUDES_LOCK(mutex_);
  void ApplyFull(const Session& session);
  void CountDown(const Session& session, nanoseconds passed);
  void MarkOut(const Session& session, const NodeInfo& node);

  // Constant.
  kv::SharedKvStore& store_;
  const MembershipOptions options_;
  const std::string place_;
  const uint64_t incarnation_;  // of this object: tells its own sessions from those of others

  SessionState state_;  // self-synchronised
  std::atomic<uint64_t> sessions_lost_{0}, renewals_{0}, renewals_failed_{0};

  // Of the thread that renews alone.
  bool renewal_fails_ = false;
  nanoseconds renewed_at_{0};  // BootTime; 0: not yet in this session
  uint64_t renewed_session_ = 0;

  // Of the chores alone.
  std::map<NodeId, nanoseconds> down_for_;
  uint64_t counted_session_ = 0;  // number of the session under which `down_for_` was counted
  uint64_t full_session_ = 0;     // number of the session under which `full_told_` is so
  bool full_told_ = false;

  Mutex rejoin_mutex_;  // one Rejoin at a time; taken before the others
  Mutex reread_mutex_;  // one Reread at a time; taken before mutex_

  mutable Mutex mutex_;
  CondVar wake_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  bool wakes_ GUARDED_BY(mutex_) = false;  // the next Tick is due now
  bool full_wanted_ GUARDED_BY(mutex_) = false;
  bool must_reread_ GUARDED_BY(mutex_) = false;
  NodeTable table_ GUARDED_BY(mutex_);
  bool is_rereading_ GUARDED_BY(mutex_) = false;
  // What was told while a Reread was under way: it may be newer than what that read.
  std::vector<std::pair<std::vector<kv::KvEvent>, uint64_t>> told_meanwhile_ GUARDED_BY(mutex_);
  uint64_t watch_number_ GUARDED_BY(mutex_) = 0;    // of the session with which the watch began
  uint64_t watch_revision_ GUARDED_BY(mutex_) = 0;  // up to which the watch told
  ViewPtr view_ GUARDED_BY(mutex_);
  std::function<void()> lost_ GUARDED_BY(mutex_);
  bool lost_untold_ GUARDED_BY(mutex_) = false;

  std::unique_ptr<Subscribers> subscribers_;
  std::unique_ptr<TaskQueue> lost_thread_;
  std::unique_ptr<TaskQueue> chores_thread_;
  std::atomic<bool> chores_run_{false};  // one at a time, and none waits
  std::unique_ptr<kv::KvWatch> watch_;
  std::thread thread_;
};

// --- Start and end. ---

Status MembershipImpl::Start() {
  CAIRNFS_ASSIGN_OR_RETURN(const kv::LeaseId replaced, TakeSession(true));
  CAIRNFS_RETURN_IF_ERROR(Reread());
  uint64_t revision;
  {
    MutexLock lock(mutex_);
    revision = table_.revision();
  }
  thread_ = std::thread([this] { Run(); });
  CAIRNFS_RETURN_IF_ERROR(BeginWatch(/*number=*/1, revision));
  // What else the dead process held ends with its lease: now, and not in some seconds.
  if (replaced != 0) (void)store_.RevokeLease(replaced).ok();
  return {};
}

MembershipImpl::~MembershipImpl() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    lost_ = nullptr;
    wake_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  chores_thread_.reset();
  {
    MutexLock rejoin(rejoin_mutex_);  // which replaces it
    watch_.reset();
  }
  lost_thread_.reset();
  subscribers_.reset();
  // A store that cannot be reached would be tried for long; the lease ends by itself.
  const std::optional<Session> session = state_.Current();
  if (session && !renewal_fails_ && state_.LeaseHolds()) (void)store_.RevokeLease(session->lease).ok();
}

// --- Taking a session. ---

Result<MembershipImpl::OwnKeys> MembershipImpl::ReadOwnKeys() {
  const std::vector<kv::KvSpan> spans{{Key(MemberKey::kNode), "", 0}, {Key(MemberKey::kSession), "", 0}};
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot snapshot, store_.Read(spans));
  OwnKeys own;
  if (!snapshot.ranges[0].entries.empty()) own.node = std::move(snapshot.ranges[0].entries[0]);
  if (snapshot.ranges[1].entries.empty()) return own;
  own.session = std::move(snapshot.ranges[1].entries[0]);
  Result<SessionRecord> record = SessionRecord::Decode(own.session->value);
  if (record.ok()) own.session_record = std::move(*record);
  return own;
}

// A process that rejoins lives itself, and so may the one that took its session over: two containers on one kernel may
// each have a copy of the directory.
bool MembershipImpl::MayReplace(const OwnKeys& own, bool joins) const {
  if (!own.session || own.session_record.incarnation == incarnation_) return true;
  return joins && own.session_record.place == place_;
}

Result<MembershipImpl::OwnKeys> MembershipImpl::WaitForForeignSession(bool joins) {
  const nanoseconds deadline = BootTime() + 2 * options_.lease;
  for (;;) {
    CAIRNFS_ASSIGN_OR_RETURN(OwnKeys own, ReadOwnKeys());
    if (MayReplace(own, joins)) return own;
    if (BootTime() > deadline) {
      return MakeError(ErrorCode::kAlreadyExists,
                       "another daemon runs as node " + options_.self.id.ToHex() +
                           ": the data directory is a copy of its, or has moved while it still runs; stop the other "
                           "one, or let this host begin with an empty directory");
    }
    MutexLock lock(mutex_);
    if (stopping_) return MakeError(ErrorCode::kUnavailable, "the daemon stops");
    wake_.WaitFor(mutex_, kForeignPoll);
  }
}

Result<uint64_t> MembershipImpl::CommitSession(const OwnKeys& own, kv::LeaseId lease) {
  const NodeInfo& self = options_.self;
  const std::string record = NodeRecord{self.name, self.address, self.domain, self.weight}.Encode();
  kv::Transaction transaction;
  transaction.IfRevision(Key(MemberKey::kSession), own.session ? own.session->revision : 0);
  transaction.IfRevision(Key(MemberKey::kNode), own.node ? own.node->revision : 0);
  if (!own.node || own.node->value != record) transaction.Put(Key(MemberKey::kNode), record);
  transaction.Delete(Key(MemberKey::kFull)).Delete(Key(MemberKey::kOut));
  PutUnderLease(transaction, Key(MemberKey::kSession), SessionRecord{incarnation_, lease, place_}.Encode(), lease);
  return store_.Commit(transaction);
}

Result<kv::LeaseId> MembershipImpl::TakeSession(bool joins) {
  for (int attempt = 1;; attempt++) {
    CAIRNFS_ASSIGN_OR_RETURN(const OwnKeys own, WaitForForeignSession(joins));
    const nanoseconds sent = BootTime();
    CAIRNFS_ASSIGN_OR_RETURN(const kv::LeaseId lease, store_.GrantLease(options_.lease));
    Result<uint64_t> revision = CommitSession(own, lease);
    if (revision.ok()) {
      state_.Begin(Session{Key(MemberKey::kSession), *revision, lease},
                   sent + options_.lease - options_.lease / kLeaseMarginDivisor);
      return own.session_record.lease;
    }
    // When the answer was lost and it did run, the next attempt finds a session of this incarnation.
    // A store that was slow may have let the lease end before the key came.
    const ErrorCode code = revision.error().code;
    const bool is_late = code == ErrorCode::kNotFound;
    if ((code != ErrorCode::kConflict && !is_late) || attempt == kAttemptsMax) return revision.error();
    if (!is_late) (void)store_.RevokeLease(lease).ok();
  }
}

void MembershipImpl::Lose(uint64_t number, const std::string& why) {
  if (!state_.Lose(number, why)) return;
  sessions_lost_++;
  spdlog::warn("this host's session with the cluster is lost: {}", why);
  MutexLock lock(mutex_);
  wakes_ = true;
  wake_.NotifyAll();
  if (stopping_) return;
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
  {
    MutexLock lock(mutex_);
    if (stopping_) return MakeError(ErrorCode::kUnavailable, "the daemon stops");
  }
  if (state_.Current()) return {};
  CAIRNFS_ASSIGN_OR_RETURN(const kv::LeaseId replaced, TakeSession(false));
  {
    MutexLock lock(mutex_);
    lost_untold_ = false;
  }
  if (replaced != 0) (void)store_.RevokeLease(replaced).ok();
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

// --- What the store tells. ---

ViewPtr MembershipImpl::view() const {
  MutexLock lock(mutex_);
  return view_;
}

void MembershipImpl::Publish() {
  view_ = table_.MakeView();
  subscribers_->Tell();
}

// What was told up to `table_` says that the key is another's or none's. A table that is older than the session says
// nothing.
std::optional<std::string> MembershipImpl::WhyOwnSessionIsGone(const Session& session) const {
  if (table_.revision() < session.revision) return std::nullopt;
  const uint64_t there = table_.SessionRevision(options_.self.id);
  if (there == session.revision) return std::nullopt;
  return there == 0 ? "its lease ended, or it was revoked" : "another process took it over";
}

Status MembershipImpl::Reread() {
  MutexLock reread(reread_mutex_);
  const std::optional<Session> session = state_.Current();  // before the read, so that the read must show it
  {
    MutexLock lock(mutex_);
    is_rereading_ = true;
    must_reread_ = false;
  }
  Result<kv::KvRange> range = store_.Range(MembersBegin(), MembersEnd(), 0);
  std::optional<std::string> why;
  {
    MutexLock lock(mutex_);
    is_rereading_ = false;
    auto meanwhile = std::exchange(told_meanwhile_, {});
    if (!range.ok()) {
      must_reread_ = true;
      return range.error();
    }
    table_.Reset(*range);
    if (session) {
      why = WhyOwnSessionIsGone(*session);
      if (range->revision < session->revision) why = "the cluster's store went back to an older state";
    }
    for (const auto& [events, revision] : meanwhile) table_.Apply(events, revision);
    Publish();
  }
  if (why) Lose(session->number, *why);
  return {};
}

Status MembershipImpl::BeginWatch(uint64_t number, uint64_t revision) {
  uint64_t number_before;
  {
    MutexLock lock(mutex_);
    number_before = std::exchange(watch_number_, number);
    watch_revision_ = revision;
  }
  kv::WatchCallbacks callbacks;
  callbacks.changed = [this, number](std::vector<kv::KvEvent> events, uint64_t at) {
    TakeEvents(number, std::move(events), at);
  };
  callbacks.lost = [this, number](uint64_t at) { WatchLost(number, at, /*went_back=*/false); };
  callbacks.went_back = [this, number](uint64_t at) { WatchLost(number, at, /*went_back=*/true); };
  auto watch = store_.Watch(MembersBegin(), MembersEnd(), revision, std::move(callbacks));
  if (!watch.ok()) {
    MutexLock lock(mutex_);
    watch_number_ = number_before;
    must_reread_ = true;  // what it told meanwhile was not listened to
    return watch.error();
  }
  watch_ = *std::move(watch);
  return {};
}

void MembershipImpl::TakeEvents(uint64_t number, std::vector<kv::KvEvent> events, uint64_t revision) {
  const std::optional<Session> session = state_.Current();
  std::optional<std::string> why;
  {
    MutexLock lock(mutex_);
    if (number != watch_number_) return;
    watch_revision_ = revision;
    if (is_rereading_) {
      told_meanwhile_.emplace_back(std::move(events), revision);
      return;
    }
    if (must_reread_) return;  // what is known has a gap; the read that fills it comes after this
    table_.Apply(events, revision);
    if (session) why = WhyOwnSessionIsGone(*session);
    if (!events.empty()) Publish();
  }
  if (why) Lose(session->number, *why);
}

void MembershipImpl::WatchLost(uint64_t number, uint64_t revision, bool went_back) {
  {
    MutexLock lock(mutex_);
    if (number != watch_number_) return;
    went_back |= revision < watch_revision_;
    watch_revision_ = revision;
    must_reread_ = true;
    wakes_ = true;
    wake_.NotifyAll();
  }
  // Whatever was read since that state may be otherwise now, under the same revisions.
  if (went_back) Lose(number, "the cluster's store went back to an older state");
}

// --- The thread that renews. ---

void MembershipImpl::Run() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    wakes_ = false;
    lock.Unlock();
    const nanoseconds began = BootTime();
    Tick();
    const nanoseconds next = began + options_.renew_every;
    lock.Lock();
    while (!stopping_ && !wakes_) {
      const nanoseconds left = next - BootTime();
      if (left.count() <= 0) break;
      wake_.WaitFor(mutex_, left);
    }
  }
}

// The chores may wait for the store for long, while it still answers those who keep leases alive: a full disk lets each
// commit wait, and what tells the others that this node is full is a commit.
void MembershipImpl::Tick() {
  std::optional<Session> session = state_.Current();
  if (session && !Renew(*session)) session.reset();
  const nanoseconds passed = session ? PassedSinceRenewal(*session) : nanoseconds(0);
  if (chores_run_.exchange(true)) return;
  chores_thread_->Post([this, session, passed] {
    DoChores(session, passed);
    chores_run_ = false;
  });
}

// A pause of this process, or of the store, counts as one round: who was down could not come back, or not be seen.
nanoseconds MembershipImpl::PassedSinceRenewal(const Session& session) {
  const nanoseconds now = BootTime();
  const bool counts = renewed_at_.count() != 0 && renewed_session_ == session.number;
  const nanoseconds passed =
      counts ? std::min<nanoseconds>(now - renewed_at_, 2 * options_.renew_every) : nanoseconds(0);
  renewed_at_ = now;
  renewed_session_ = session.number;
  return passed;
}

void MembershipImpl::DoChores(const std::optional<Session>& session, nanoseconds passed) {
  bool must_reread;
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    must_reread = must_reread_;
  }
  if (must_reread) {
    down_for_.clear();  // what happened meanwhile is not known: a node may have been up
    if (Status read = Reread(); !read.ok())
      spdlog::debug("the cluster's nodes cannot be read: {}", read.error().message);
  }
  if (!session || IsStopping()) return;
  ApplyFull(*session);
  if (IsStopping()) return;
  if (std::exchange(counted_session_, session->number) != session->number) down_for_.clear();
  CountDown(*session, passed);
}

bool MembershipImpl::IsStopping() const {
  MutexLock lock(mutex_);
  return stopping_;
}

bool MembershipImpl::Renew(const Session& session) {
  const nanoseconds sent = BootTime();
  Result<milliseconds> left = store_.KeepLeaseAlive(session.lease);
  if (left.ok()) {
    state_.Extend(session.number, sent + *left - options_.lease / kLeaseMarginDivisor);
    renewals_++;
    if (renewal_fails_) spdlog::info("this host's lease is kept alive again");
    renewal_fails_ = false;
    return true;
  }
  renewals_failed_++;
  if (left.error().code == ErrorCode::kNotFound) {
    Lose(session.number, "its lease has ended");
    return false;
  }
  if (!renewal_fails_) spdlog::warn("this host's lease cannot be kept alive now: {}", left.error().message);
  renewal_fails_ = true;
  return false;
}

void MembershipImpl::ApplyFull(const Session& session) {
  bool wanted;
  {
    MutexLock lock(mutex_);
    wanted = full_wanted_;
  }
  const bool told = full_session_ == session.number && full_told_;  // a session begins without
  if (wanted == told) return;
  kv::Transaction transaction;
  transaction.IfRevision(session.key, session.revision);
  if (wanted) {
    PutUnderLease(transaction, Key(MemberKey::kFull), "", session.lease);
  } else {
    transaction.Delete(Key(MemberKey::kFull));
  }
  Result<uint64_t> revision = store_.Commit(transaction);
  if (!revision.ok()) {  // tried again next time; a lost session shows by itself
    spdlog::debug("the others cannot be told whether this node is full: {}", revision.error().message);
    return;
  }
  full_session_ = session.number;
  full_told_ = wanted;
}

void MembershipImpl::CountDown(const Session& session, nanoseconds passed) {
  const ViewPtr view = this->view();
  std::map<NodeId, nanoseconds> down_for;
  size_t rank = 0;  // of this node among those that are up
  for (const NodeInfo& node : view->nodes) {
    if (node.state == NodeState::kUp && node.id < options_.self.id) rank++;
    if (node.state != NodeState::kDown || node.id == options_.self.id) continue;
    auto known = down_for_.find(node.id);
    down_for[node.id] = known == down_for_.end() ? nanoseconds(0) : known->second + passed;
  }
  down_for_ = std::move(down_for);
  // One after the other, so that a thousand nodes do not all write the same.
  const nanoseconds limit = options_.out_after + std::min(rank, kOutFindersMax) * options_.renew_every;
  for (const NodeInfo& node : view->nodes) {
    if (IsStopping()) return;
    auto down = down_for_.find(node.id);
    if (down != down_for_.end() && down->second >= limit) MarkOut(session, node);
  }
}

void MembershipImpl::MarkOut(const Session& session, const NodeInfo& node) {
  kv::Transaction transaction;
  transaction.IfRevision(session.key, session.revision);
  transaction.IfExists(KeyOf(MemberKey::kNode, node.id));
  transaction.IfAbsent(SessionKey(node.id)).IfAbsent(KeyOf(MemberKey::kOut, node.id));
  transaction.Put(KeyOf(MemberKey::kOut, node.id), OutRecord{WallClock(), options_.self.id}.Encode());
  if (!store_.Commit(transaction).ok()) return;  // it came back, somebody else wrote it, or it is tried again
  spdlog::warn("node {} ({}) is out: it was down for {} s", node.name, node.id.ToHex(),
               std::chrono::duration_cast<std::chrono::seconds>(options_.out_after).count());
}

// --- What callers ask for. ---

void MembershipImpl::SetFull(bool full) {
  MutexLock lock(mutex_);
  if (full_wanted_ == full) return;
  full_wanted_ = full;
  wakes_ = true;
  wake_.NotifyAll();
}

Status MembershipImpl::Forget(const NodeId& id) {
  for (int attempt = 1;; attempt++) {
    CAIRNFS_ASSIGN_OR_RETURN(const Session own, session());
    const std::vector<kv::KvSpan> spans{{KeyOf(MemberKey::kNode, id), "", 0}, {SessionKey(id), "", 0}};
    CAIRNFS_ASSIGN_OR_RETURN(const kv::KvSnapshot snapshot, store_.Read(spans));
    if (!snapshot.ranges[1].entries.empty()) {
      return MakeError(ErrorCode::kBusy, "node " + id.ToHex() + " is up: stop its daemon first");
    }
    if (snapshot.ranges[0].entries.empty()) {
      return MakeError(ErrorCode::kNotFound, "there is no node " + id.ToHex());
    }
    kv::Transaction transaction;
    transaction.IfRevision(own.key, own.revision);
    transaction.IfRevision(KeyOf(MemberKey::kNode, id), snapshot.ranges[0].entries[0].revision);
    transaction.IfAbsent(SessionKey(id));
    for (MemberKey kind : {MemberKey::kNode, MemberKey::kFull, MemberKey::kOut}) transaction.Delete(KeyOf(kind, id));
    Result<uint64_t> revision = store_.Commit(transaction);
    if (revision.ok()) return {};
    if (revision.error().code != ErrorCode::kConflict || attempt == kAttemptsMax) return revision.error();
  }
}

MembershipStats MembershipImpl::stats() const {
  MembershipStats stats;
  stats.sessions_lost_total = sessions_lost_;
  stats.renewals_total = renewals_;
  stats.renewals_failed_total = renewals_failed_;
  return stats;
}

}  // namespace

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
