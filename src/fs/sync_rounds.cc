#include "fs/sync_rounds.h"

#include <pthread.h>

#include <algorithm>
#include <cassert>
#include <future>
#include <iterator>

#include "base/failpoint.h"
#include "base/log.h"

namespace cairnfs::fs {
namespace {

Failpoint round_opened("fs.round_opened", Failpoint::Kind::kKill);

// A portion takes about so long, where no single file takes longer.
constexpr std::chrono::milliseconds kPortionTimeMin{500}, kPortionTimeMax{1000};

bool IsForAll(SyncRounds::Scope scope) {
  return scope == SyncRounds::Scope::kAll || scope == SyncRounds::Scope::kCommit;
}

// The renames of a round of commits may go to the same disk: they are made before it is busy for long again.
constexpr std::chrono::milliseconds kAfterCommits{250};

bool IsCutShort(const Status& status) { return !status.ok() && status.error().code == ErrorCode::kInterrupted; }

}  // namespace

SyncRounds::SyncRounds(const Parts& parts, const Options& options) : at_(parts), interval_ms_(options.interval_ms) {
  thread_ = std::thread([this] { Run(); });
}

SyncRounds::~SyncRounds() {
  if (thread_.joinable()) static_cast<void>(Stop());
}

std::optional<Status> SyncRounds::TryAdmit(NameChange change) {
  if (!kicked_ && !running_) {
    kicked_ = true;
    wake_.NotifyOne();
  }
  if (at_.publisher.Admit(change) != Publisher::Admission::kAfterRound) return Status();
  if (failure_) {
    if (at_.publisher.AdmitsWhileFailing(change)) return Status();
    return failure_->WithContext("too many changes wait for the disk");
  }
  if (stopping_) return MakeError(ErrorCode::kUnavailable, "the filesystem is stopping");
  return std::nullopt;
}

void SyncRounds::WhenAdmitted(NameChange change, Done<void> go) {
  if (at_.publisher.Admit(change) == Publisher::Admission::kAtOnce) return go({});
  std::optional<Status> admitted;
  {
    MutexLock lock(mutex_);
    admitted = TryAdmit(change);
    if (!admitted) postponed_.push_back({change, std::move(go)});
  }
  if (admitted) go(*admitted);  // NOLINT(bugprone-use-after-move): moved only where it was not admitted
}

Status SyncRounds::WaitUntilAdmitted(const Context& context, NameChange change) {
  while (at_.publisher.Admit(change) != Publisher::Admission::kAtOnce) {
    if (context.Expired()) return MakeError(ErrorCode::kInterrupted, "too many changes wait for the disk");
    std::optional<Status> admitted;
    {
      MutexLock lock(mutex_);
      admitted = TryAdmit(change);
    }
    if (admitted) return *admitted;
    static_cast<void>(RequestAndWait(Scope::kNames));  // its failure is what TryAdmit tells next
  }
  return {};
}

// After a round. Those that find the bound passed again wait for the next.
void SyncRounds::LetInPostponed() {
  std::vector<Postponed> postponed;
  {
    MutexLock lock(mutex_);
    postponed.swap(postponed_);
  }
  for (Postponed& one : postponed) {
    at_.waiters.Post([this, change = one.change, go = std::move(one.go)] { WhenAdmitted(change, go); });
  }
}

void SyncRounds::NoteClosed(uint64_t bytes) {
  if (at_.publisher.NoteClosed(bytes)) at_.waiters.Post([this] { at_.publisher.AddFreezePoint(); });
}

void SyncRounds::AddOrphan(const InodePtr& inode) {
  MutexLock lock(mutex_);
  orphans_.push_back(inode->id);
}

bool SyncRounds::NothingPending() const {
  MutexLock lock(mutex_);
  return at_.files.empty() && orphans_.empty() && !running_ && !at_.publisher.is_open() && waiters_.empty() &&
         !has_loss_ && !at_.publisher.HasUnflushedNames();
}

void SyncRounds::Request(Done<void> done, Scope scope) {
  auto answer = [done = std::move(done)](const Status& status) {
    done(status);
    return true;
  };
  Request(Answer(std::move(answer)), scope);
}

SyncRounds::Answer SyncRounds::OnceThereIsRoom(Answer answer, Scope scope, const Sources& sources) {
  if (!make_room_.count || scope == Scope::kNames) return answer;
  return [this, scope, sources, count = make_room_.count(), answer = std::move(answer)](const Status& status) {
    const bool lacks_room = !status.ok() && status.error().code == ErrorCode::kNoSpace;
    const auto again = [this, answer, scope, sources, status](bool has_made) {
      if (has_made) return RequestOnce(OnceThereIsRoom(answer, scope, sources), scope, sources);
      answer(status);
    };
    return (lacks_room && make_room_.then(count, again)) || answer(status);
  };
}

void SyncRounds::Request(Answer answer, Scope scope, Sources sources) {
  Answer once = OnceThereIsRoom(std::move(answer), scope, sources);
  RequestOnce(std::move(once), scope, std::move(sources));
}

void SyncRounds::RequestOnce(Answer answer, Scope scope, Sources sources) {
  const bool is_commit = scope == Scope::kCommit && !sources.empty();
  if (IsForAll(scope)) {
    requests_total_++;
    if (NothingPending()) {
      answer({});
      return;
    }
  }
  MutexLock lock(mutex_);
  const bool is_published = scope == Scope::kClosed && at_.files.empty() && !running_ && !at_.publisher.is_open();
  if (!is_published && !stopping_) {
    waiters_.push_back({scope, std::move(answer), std::move(sources)});
    wake_.NotifyOne();
    lock.Unlock();
    if (is_commit && IsHurried()) CutShort();
    return;
  }
  lock.Unlock();
  answer(is_published ? Status() : Status(MakeError(ErrorCode::kUnavailable, "the filesystem is stopping")));
}

// Not after a failure: the rounds' thread knows when to try again.
bool SyncRounds::MayRunHere() {
  if (has_runner_ || stopping_ || !waiters_.empty() || !last_error_.empty()) return false;
  return at_.publisher.MayRunOnCaller();
}

void SyncRounds::RequestHere(Answer answer) {
  bool runs_here = false;
  if (!NothingPending()) {
    MutexLock lock(mutex_);
    runs_here = MayRunHere();
    if (runs_here) BeginRound();
  }
  if (!runs_here) return Request(std::move(answer), Scope::kAll);
  requests_total_++;
  std::vector<Waiter> waiters;
  waiters.push_back({Scope::kAll, OnceThereIsRoom(std::move(answer), Scope::kAll, {}), {}});
  RunRound(std::move(waiters));
}

Status SyncRounds::RequestAndWait(Scope scope) {
  std::promise<Status> promise;
  Request([&](Status status) { promise.set_value(std::move(status)); }, scope);
  return promise.get_future().get();
}

std::string SyncRounds::last_error() const {
  MutexLock lock(mutex_);
  return last_error_;
}

bool SyncRounds::failing() const {
  MutexLock lock(mutex_);
  return failure_.has_value();
}

std::optional<Error> SyncRounds::DiskFailure() const {
  if (!disk_failed_) return std::nullopt;
  MutexLock lock(mutex_);
  if (!failure_) return std::nullopt;
  return failure_->WithContext("nothing becomes durable any more");
}

Status SyncRounds::Stop() {
  Status status = RequestAndWait();
  if (auto left = FailedFiles(); status.ok() && !left.empty()) status = left.begin()->second;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.NotifyOne();
  }
  thread_.join();
  if (status.ok() && rounds_total_ > 0) at_.publisher.Stop();
  return status;
}

void SyncRounds::SetInterval(unsigned interval_ms) {
  interval_ms_ = interval_ms;
  MutexLock lock(mutex_);
  wake_.NotifyAll();  // who waits goes by the one before
}

void SyncRounds::Run() {
  pthread_setname_np(pthread_self(), "cairn-rounds");
  for (;;) {
    std::vector<Waiter> waiters;
    {
      MutexLock lock(mutex_);
      if (waiters_.empty() && !kicked_ && !stopping_) {
        wake_.WaitFor(mutex_, std::chrono::milliseconds(interval_ms_.load()));
      }
      while (has_runner_) runner_left_.Wait(mutex_);
      if (stopping_ && waiters_.empty()) break;
      waiters.swap(waiters_);
      BeginRound();
    }
    RunRound(std::move(waiters));
    // Do not spin on a disk that is full: whoever makes room asks again, and so does the interval.
    MutexLock lock(mutex_);
    if (!last_error_.empty() && waiters_.empty() && !stopping_) {
      wake_.WaitFor(mutex_, std::chrono::milliseconds(interval_ms_.load()));
    }
  }
  LetInPostponed();
}

void SyncRounds::BeginRound() {
  assert(!has_runner_);
  kicked_ = false;
  running_ = has_runner_ = true;
  cut_short_ = std::stop_source();
}

Context SyncRounds::RoundContext() const {
  MutexLock lock(mutex_);
  return Context(cut_short_.get_token());
}

void SyncRounds::CutShort() {
  std::stop_source cut_short(std::nostopstate);
  {
    MutexLock lock(mutex_);
    cut_short = cut_short_;
  }
  cut_short.request_stop();
}

bool SyncRounds::IsCommit(const Waiter& waiter) { return waiter.scope == Scope::kCommit && !waiter.sources.empty(); }

bool SyncRounds::NeedsOpen(const Waiter& waiter) const {
  return takes_closed_first_ ? waiter.scope == Scope::kAll : waiter.scope != Scope::kClosed;
}

void SyncRounds::KeepOnly(std::vector<Waiter>& waiters, const std::function<bool(const Waiter&)>& keeps) {
  const auto later = std::stable_partition(waiters.begin(), waiters.end(), keeps);
  MutexLock lock(mutex_);
  waiters_.insert(waiters_.begin(), std::make_move_iterator(later), std::make_move_iterator(waiters.end()));
  waiters.erase(later, waiters.end());
}

void SyncRounds::AnswerPublished(std::vector<Waiter>& waiters) {
  if (at_.publisher.is_open()) return;  // it may not be known what is published
  const std::vector<InodeId> dirty = at_.files.Dirty();
  const std::set<InodeId> unpublished(dirty.begin(), dirty.end());
  std::erase_if(waiters, [&](const Waiter& waiter) {
    const auto is_unpublished = [&](const meta::Attr& file) { return unpublished.contains(file.inode); };
    if (waiter.scope != Scope::kClosed || waiter.sources.empty()) return false;
    if (std::any_of(waiter.sources.begin(), waiter.sources.end(), is_unpublished)) return false;
    waiter.answer({});
    return true;
  });
}

Status SyncRounds::RunClosed(std::vector<Waiter>& waiters, const Publisher::Round& first,
                             const Publisher::Round& others) {
  if (!at_.publisher.TakesAnyFiles()) {
    for (size_t left = at_.publisher.freeze_points(); left > 0; --left) {  // more may come
      CAIRNFS_RETURN_IF_ERROR(RunOnce({.which = DirtyFiles::Which::kToPoint}, first));
    }
    return RunOnce({.which = DirtyFiles::Which::kClosed}, first);
  }
  std::optional<std::set<InodeId>> among;  // each of them has one turn
  for (const Publisher::Round* round = &first;; round = &others) {
    AnswerPublished(waiters);
    const auto begun = Clock::Now();
    const DirtyFiles::Selection portion{
        .which = DirtyFiles::Which::kClosed, .among = std::move(among), .bytes_max = portion_bytes_};
    CAIRNFS_RETURN_IF_ERROR(RunOnce(portion, *round));
    among = at_.files.TakeLeft();
    if (among->empty()) return {};
    const auto took = Clock::Now() - begun;
    if (took < kPortionTimeMin) portion_bytes_ = std::min(portion_bytes_ * 2, kPortionBytesMax);
    if (took > kPortionTimeMax) portion_bytes_ = std::max(portion_bytes_ / 2, kPortionBytesMin);
  }
}

std::optional<Status> SyncRounds::RunCommits(std::vector<Waiter>& waiters) {
  Sources moved;
  for (const Waiter& waiter : waiters) {
    if (IsCommit(waiter)) moved.insert(moved.end(), waiter.sources.begin(), waiter.sources.end());
  }
  if (!at_.publisher.TakesAnyFiles() || moved.empty()) return std::nullopt;
  const Publisher::Round round{.is_awaited = true};
  // What the last round could not publish is in no list before.
  if (Status finished = FinishLast(round); !finished.ok()) return finished;
  auto below = find_below_(moved, at_.files.Dirty());
  if (!below.ok()) return std::nullopt;
  KeepOnly(waiters, IsCommit);
  return RunOnce({.which = DirtyFiles::Which::kAll, .among = *std::move(below)}, round);
}

Status SyncRounds::RunHurried(std::vector<Waiter>& waiters, const Publisher::Round& round) {
  Publisher::Round first = round;
  if (std::exchange(commits_were_last_, false)) {
    static_cast<void>(Context().Sleep(kAfterCommits));
    first.context = {};
    if (std::any_of(waiters.begin(), waiters.end(), IsCommit)) CutShort();  // they are next
  } else if (const auto committed = RunCommits(waiters)) {
    commits_were_last_ = true;
    return *committed;
  }
  const auto needs_open = [this](const Waiter& waiter) { return NeedsOpen(waiter); };
  const auto needs_none = [this](const Waiter& waiter) { return !NeedsOpen(waiter); };
  if (takes_closed_first_ && std::any_of(waiters.begin(), waiters.end(), needs_none)) KeepOnly(waiters, needs_none);
  const Status closed = RunClosed(waiters, first, round);
  if (IsCutShort(closed) || std::none_of(waiters.begin(), waiters.end(), needs_open)) return closed;
  at_.files.shortage.reset();  // what fails the next one meets, and tells
  return RunOnce({.which = DirtyFiles::Which::kAll}, round);
}

void SyncRounds::RunRound(std::vector<Waiter> waiters) {
  const bool is_hurried = IsHurried();
  at_.files.closed_go_first = is_hurried;
  at_.files.shortage.reset();
  const auto needs_open = [this](const Waiter& waiter) { return NeedsOpen(waiter); };
  const auto is_for_all = [](const Waiter& waiter) { return IsForAll(waiter.scope); };
  const auto for_all_count = std::count_if(waiters.begin(), waiters.end(), is_for_all);
  const Publisher::Round round{.is_awaited = for_all_count > 0, .context = RoundContext()};
  const bool is_to_point = !is_hurried && waiters.empty() && at_.publisher.freeze_points() > 0;
  const bool takes_all = std::any_of(waiters.begin(), waiters.end(), needs_open);
  const auto which = takes_all     ? DirtyFiles::Which::kAll
                     : is_to_point ? DirtyFiles::Which::kToPoint
                                   : DirtyFiles::Which::kClosed;
  const Status flushed = is_hurried ? RunHurried(waiters, round) : RunOnce({which}, round);
  if (IsCutShort(flushed) && round.context.IsStopped()) return BeginAgain(std::move(waiters));
  const bool all_are_answered = std::count_if(waiters.begin(), waiters.end(), is_for_all) == for_all_count;
  Status status = flushed;
  if (status.ok() && at_.files.loss) status = at_.files.loss->WithContext("bytes of a file are lost");
  if (status.ok() && at_.files.shortage) status = *at_.files.shortage;
  has_loss_ = at_.files.loss.has_value();
  {
    MutexLock lock(mutex_);
    running_ = false;
    kicked_ |= is_to_point;  // the rest comes at once
    NoteOutcome(flushed, status);
  }
  LetInPostponed();
  bool is_told = false;
  for (const Waiter& waiter : waiters) {
    const bool is_taken = waiter.answer(is_for_all(waiter) ? status : flushed);
    is_told = is_told || (is_taken && is_for_all(waiter));
  }
  if (flushed.ok() && is_told && all_are_answered) {  // else those of the next round are told too
    at_.files.loss.reset();
    has_loss_ = false;
  }
  MutexLock lock(mutex_);
  has_runner_ = false;
  runner_left_.NotifyOne();
}

void SyncRounds::BeginAgain(std::vector<Waiter> waiters) {
  KeepOnly(waiters, [](const Waiter&) { return false; });
  MutexLock lock(mutex_);
  running_ = has_runner_ = false;
  kicked_ = true;
  runner_left_.NotifyOne();
}

void SyncRounds::NoteOutcome(const Status& flushed, const Status& status) {
  failure_.reset();
  if (!flushed.ok()) failure_ = flushed.error();
  disk_failed_ = failure_ && at_.publisher.IsDiskFailure(*failure_);
  const std::string error = status.ok() ? "" : status.error().message;
  if (error == last_error_) return;
  if (error.empty()) {
    spdlog::info("sync rounds go well again");
  } else {
    spdlog::error("a sync round failed: {}", error);
  }
  last_error_ = error;
}

Status SyncRounds::FinishLast(const Publisher::Round& round) {
  CAIRNFS_RETURN_IF_ERROR(at_.publisher.ResolveDoubt());
  return FinishOpen(round);
}

Status SyncRounds::RunOnce(const DirtyFiles::Selection& selection, const Publisher::Round& round) {
  CAIRNFS_RETURN_IF_ERROR(FinishLast(round));  // one that failed comes first: order
  RemoveOrphans();
  at_.publisher.Open(selection);
  if (at_.publisher.is_open()) round_opened.Pass();
  return FinishOpen(round);
}

Status SyncRounds::FinishOpen(Publisher::Round round) {
  if (!at_.publisher.is_open()) return {};
  round.number = rounds_total_ + 1;
  Status status = at_.publisher.Finish(round);
  if (status.ok()) rounds_total_++;
  return status;
}

void SyncRounds::RemoveOrphans() {
  std::vector<InodeId> orphans;
  {
    MutexLock lock(mutex_);
    orphans.swap(orphans_);
  }
  if (orphans.empty()) return;
  if (auto status = at_.names.RemoveOrphans({}, orphans); !status.ok()) {
    spdlog::warn("{} deleted files could not be removed and are left to the next start: {}", orphans.size(),
                 status.error().message);
  }
}

}  // namespace cairnfs::fs
