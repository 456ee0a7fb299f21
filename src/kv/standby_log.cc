#include "kv/standby_log.h"

#include <cassert>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "kv/local_store_format.h"

namespace cairnfs::kv {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

Failpoint standby_before_ship("standby.before_ship", Failpoint::Kind::kSkippable);
Failpoint standby_after_ship("standby.after_ship", Failpoint::Kind::kKill);
Failpoint standby_detached("standby.detached", Failpoint::Kind::kKill);
Failpoint standby_attaching("standby.attaching", Failpoint::Kind::kKill);

constexpr size_t kCopyPieceBytes = 1 << 20;
constexpr size_t kAppendBytes = 4 << 20;
constexpr milliseconds kProposalWait{5'000};
constexpr milliseconds kShipPause{200};  // before the same batch is tried again
constexpr int kLeaseMarginDivisor = 20;
constexpr const char* kHasOthers = "it has other names than this host";

Error Stopping() { return MakeError(ErrorCode::kUnavailable, "this host is stopping"); }

size_t BytesOf(const LogEntry& entry) {
  size_t bytes = sizeof(LogEntry);
  for (const EngineWrite& write : entry.writes) bytes += write.key.size() + (write.value ? write.value->size() : 0);
  return bytes;
}

}  // namespace

uint64_t StandbyLog::Revision() const {
  const auto revision = ReadRevision(parts_.engine, nullptr);
  return revision.ok() ? revision->value_or(0) : 0;
}

Proposal StandbyLog::ProposalOf(const Chosen& chosen) const {
  return {parts_.self, chosen.value.voters, false, Revision()};
}

bool StandbyLog::HoldsLease() const { return Clock::SinceBoot().count() < lease_until_ns_; }

void StandbyLog::Lead(const Chosen& chosen) {
  MutexLock lock(mutex_);
  const bool is_first = !chosen_;
  chosen_ = chosen;
  const nanoseconds lease = kPrimaryLease - kPrimaryLease / kLeaseMarginDivisor;
  if (!chosen.value.IsAlone()) lease_until_ns_ = (chosen.sent + lease).count();  // that the voters promised
  using Standby = Register::Standby;
  if (chosen.value.state == Standby::kNone) {
    SetMode(Mode::kAlone);
  } else if (mode_ == Mode::kAlone) {
    SetMode(is_first && chosen.value.state == Standby::kWhole ? Mode::kShipping : Mode::kBehind);
  }
}

void StandbyLog::Fence(const std::string& why) {
  MutexLock lock(mutex_);
  if (is_fenced_.exchange(true)) return;
  fenced_why_ = why;
  spdlog::warn("this host serves the names no more: {}", why);
}

std::optional<Chosen> StandbyLog::chosen() const {
  MutexLock lock(mutex_);
  return chosen_;
}

Position StandbyLog::follower_position() const {
  MutexLock lock(mutex_);
  return follower_;
}

Status StandbyLog::MayAnswer() const {
  if (is_fenced_) {
    MutexLock lock(mutex_);
    return MakeError(ErrorCode::kUnavailable, "this host serves the names no more: " + fenced_why_);
  }
  if (mode_ == Mode::kAlone || HoldsLease()) return {};
  return MakeError(
      ErrorCode::kUnavailable,
      "this host may not be the one that serves the names: it reaches neither its standby nor the witness");
}

Result<Chosen> StandbyLog::Change(const Context& context,
                                  const std::function<Result<Register>(const Register& now)>& change) {
  MutexLock proposing(propose_mutex_);
  const std::optional<Chosen> before = chosen();
  assert(before);
  bool is_mine = true;
  auto change_mine = [&](const std::optional<Register>& now) -> Result<Register> {
    if (!now) return RegisterForgotten();
    is_mine = now->Primary().node == parts_.self;
    return is_mine ? change(*now) : *now;
  };
  Result<Chosen> chosen = Propose(context, parts_.voters, ProposalOf(*before), change_mine);
  if (!chosen.ok() && chosen.error().code == ErrorCode::kStale) Fence(chosen.error().message);
  if (!chosen.ok()) return chosen;
  if (!is_mine) {
    Fence("node " + chosen->value.Primary().node + " was promoted");
    return MakeError(ErrorCode::kStale, "node " + chosen->value.Primary().node + " serves the names now");
  }
  Lead(*chosen);
  return chosen;
}

Status StandbyLog::KeepLease(const Context& context) {
  {
    MutexLock proposing(propose_mutex_);
    const std::optional<Chosen> now = chosen();
    if (!now || now->value.IsAlone() || is_fenced_) return {};
    const Result<Chosen> renewed = Renew(context, parts_.voters, ProposalOf(*now), *now);
    if (renewed.ok()) {
      Lead(*renewed);
      return {};
    }
  }
  const auto asked = Change(context, [](const Register& now) { return now; });
  return asked.ok() ? Status() : Status(asked.error());
}

// --- Batches. ---

Status StandbyLog::BeforeWrite(const LogEntry& entry) {
  MutexLock lock(ship_mutex_);
  if (stop_.stop_requested()) return Stopping();
  CAIRNFS_RETURN_IF_ERROR(MayAnswer());
  if (mode_ == Mode::kShipping) return Ship(entry);
  Remember(entry);
  return {};
}

// What was sent once is either written or nobody's: it is tried until one of both is known.
Status StandbyLog::Ship(const LogEntry& entry) {
  if (standby_before_ship.PassOrSkip()) return {};
  const Context until_stop(stop_.get_token());
  while (true) {
    std::string why = kHasOthers;
    if (!must_copy_) {
      const Result<Position> position = Append(until_stop.WithTimeout(parts_.append_wait), {entry});
      standby_after_ship.Pass();
      if (position.ok() && *position == entry.after) {
        ForgetAll();
        return {};
      }
      if (position.ok()) must_copy_ = true;
      if (!position.ok()) why = position.error().message;
    }
    if (Detach(until_stop, why).ok()) {
      Remember(entry);
      return {};
    }
    if (is_fenced_) return MayAnswer();
    if (!until_stop.Sleep(kShipPause)) return Stopping();
  }
}

Status StandbyLog::Detach(const Context& context, const std::string& why) {
  const Timestamp now = Clock::WallTime();
  const uint64_t revision = Revision();
  auto detach = [&](const Register& before) -> Result<Register> {
    Register value = before;
    if (value.state != Register::Standby::kWhole) return value;
    value.state = Register::Standby::kDetached;
    value.detached_seconds = now.seconds;
    value.detached_revision = revision;
    return value;
  };
  const auto changed = Change(context.WithTimeout(kProposalWait), detach);
  if (!changed.ok()) return changed.error();
  ChangeMode(Mode::kShipping, Mode::kBehind);
  standby_detached.Pass();
  spdlog::warn("the standby of the names is detached, and this host goes on without it: {}", why);
  return {};
}

// The last one always: it may not be in the engine yet when it is looked how far that is.
void StandbyLog::Remember(const LogEntry& entry) {
  const size_t bytes_max = mode_ == Mode::kAlone ? 0 : parts_.log_bytes_max;
  log_.push_back(entry);
  log_bytes_ += BytesOf(entry);
  while (log_bytes_ > bytes_max && log_.size() > 1) ForgetOldest();
}

void StandbyLog::ForgetOldest() {
  log_bytes_ -= BytesOf(log_.front());
  log_.pop_front();
}

void StandbyLog::ForgetAll() {
  log_.clear();
  log_bytes_ = 0;
}

// The standby may have the batch, and the next one makes the same revision.
Status StandbyLog::WriteFailed() {
  MutexLock lock(ship_mutex_);
  ForgetAll();
  must_copy_ = true;
  if (mode_ != Mode::kShipping) return {};
  return Detach(Context(stop_.get_token()), kHasOthers);
}

// --- Catching up. ---

Result<Position> StandbyLog::Append(const Context& context, const std::vector<LogEntry>& entries) {
  const std::optional<Chosen> now = chosen();
  Result<Position> position = parts_.follower(now->value.StandbyMember())->Append(context, now->ballot, entries);
  if (!position.ok()) return position;
  MutexLock lock(mutex_);
  follower_ = *position;
  return position;
}

bool StandbyLog::CatchUp(const Context& context) {
  const std::optional<Chosen> now = chosen();
  if (!now || now->value.IsAlone() || !MayAnswer().ok()) return false;
  if (mode_ == Mode::kShipping) {
    if (now->value.state == Register::Standby::kWhole) return false;
    standby_attaching.Pass();
    return Attach(context).ok();
  }
  const Result<Position> position = Append(context.WithTimeout(parts_.append_wait), {});
  if (!position.ok()) return false;
  const Result<bool> sent = SendLog(context, *position);
  if (!sent.ok() || *sent) return sent.ok();
  const Status copied = CopyAll(context);
  if (!copied.ok()) spdlog::warn("the names cannot be copied to the standby now: {}", copied.error().message);
  return copied.ok();
}

// Whether the log goes on from there; then what lies before is dropped.
Result<bool> StandbyLog::ReachesBackTo(const Position& at) {
  if (log_.empty()) {
    CAIRNFS_ASSIGN_OR_RETURN(const Position own, ReadPosition(parts_.engine));
    return own == at;
  }
  if (log_.back().after == at) ForgetAll();
  while (!log_.empty() && log_.front().before != at) {
    // The last one may not be in the engine yet, of which a copy is made.
    if (log_.size() == 1) return false;
    ForgetOldest();
  }
  return true;
}

// Sends the entries from there on. Once the standby has the last one, each batch goes to it first. False: the log does
// not reach back so far.
Result<bool> StandbyLog::SendLog(const Context& context, const Position& from) {
  Position at = from;
  auto append = [&](const std::vector<LogEntry>& entries) -> Result<bool> {
    CAIRNFS_ASSIGN_OR_RETURN(at, Append(context.WithTimeout(parts_.append_wait), entries));
    return at == entries.back().after;
  };
  while (true) {
    std::vector<LogEntry> entries;
    {
      MutexLock lock(ship_mutex_);
      if (must_copy_ || mode_ != Mode::kBehind) return mode_ != Mode::kBehind;
      CAIRNFS_ASSIGN_OR_RETURN(bool goes_on, ReachesBackTo(at));
      if (!goes_on) return false;
      size_t bytes = 0;
      for (auto entry = log_.begin(); entry != log_.end() && bytes < kAppendBytes; ++entry) {
        entries.push_back(*entry);
        bytes += BytesOf(*entry);
      }
      // The last ones go while no batch can come after them.
      if (entries.size() == log_.size()) {
        if (!entries.empty()) {
          CAIRNFS_ASSIGN_OR_RETURN(goes_on, append(entries));
        }
        if (goes_on) ChangeMode(Mode::kBehind, Mode::kShipping);
        return goes_on;
      }
    }
    CAIRNFS_ASSIGN_OR_RETURN(const bool goes_on, append(entries));
    if (!goes_on) return false;
  }
}

Status StandbyLog::Attach(const Context& context) {
  auto attach = [](const Register& before) -> Result<Register> {
    Register value = before;
    if (value.IsAlone()) return value;
    value.state = Register::Standby::kWhole;
    value.detached_seconds = 0;
    value.detached_revision = 0;
    return value;
  };
  MutexLock lock(ship_mutex_);  // so that no batch detaches it meanwhile
  if (mode_ != Mode::kShipping) return {};
  if (must_copy_) return Detach(context, kHasOthers);
  const auto changed = Change(context.WithTimeout(kProposalWait), attach);
  if (!changed.ok()) return changed.error();
  spdlog::info("the standby of the names has all of them");
  return {};
}

Status StandbyLog::SendPiece(const Context& context, CopyPiece& piece, std::string end) {
  piece.end = std::move(end);
  const std::optional<Chosen> now = chosen();
  if (is_fenced_ || now->value.IsAlone()) return MakeError(ErrorCode::kStale, "there is no standby any more");
  CAIRNFS_RETURN_IF_ERROR(parts_.follower(now->value.StandbyMember())->Copy(context, now->ballot, piece));
  piece = {piece.copy, piece.number + 1, piece.end, "", {}};
  return {};
}

Status StandbyLog::CopyAll(const Context& context) {
  std::unique_ptr<EngineSnapshot> snapshot;
  CopyPiece piece;
  {
    MutexLock lock(ship_mutex_);
    snapshot = parts_.engine.GetSnapshot();
    piece.copy = ++copies_;
    must_copy_ = false;
  }
  spdlog::info("copying the names to the standby");
  // The ballot is that of the first piece throughout: a change of the register meanwhile ends the copy.
  size_t bytes = 0;
  Status sent;
  auto take = [&](std::string_view key, std::string_view value) {
    if (bytes >= kCopyPieceBytes) {
      sent = SendPiece(context, piece, std::string(key));
      bytes = 0;
    }
    if (!sent.ok() || context.IsStopped()) return false;
    bytes += key.size() + value.size();
    piece.entries.emplace_back(key, value);
    return true;
  };
  Status scanned = parts_.engine.Scan("", kNamesEnd, snapshot.get(), take);
  if (scanned.ok()) scanned = sent;
  if (scanned.ok() && context.IsStopped()) scanned = MakeError(ErrorCode::kInterrupted, "this host is stopping");
  if (scanned.ok()) scanned = SendPiece(context, piece, std::string(kNamesEnd));
  if (scanned.ok()) return {};
  MutexLock lock(ship_mutex_);
  must_copy_ = true;
  return scanned;
}

}  // namespace cairnfs::kv
