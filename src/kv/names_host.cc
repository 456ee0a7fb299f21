#include "kv/names_host.h"

#include <fmt/format.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "base/utc_text.h"

namespace cairnfs::kv {
namespace {

using std::chrono::milliseconds;
using Standby = Register::Standby;

Failpoint promote_proposed("standby.promoted", Failpoint::Kind::kKill);

constexpr milliseconds kLookEvery{200};  // of what waits for a lease to end
constexpr milliseconds kCatchUpPause{500};

Error NoStandby(const std::string& why) { return InvalidArgument("this host is not the standby of the names: " + why); }

std::string LossText(const Register& now, const NamesHost::Promotion& promotion) {
  std::string text = fmt::format(
      "this host lacks names: the primary went on without it at {}, at revision {} of the names, and this host has "
      "revision {}. What was changed since is lost if it is promoted",
      UtcText({now.detached_seconds, 0}), now.detached_revision, promotion.own_revision);
  if (promotion.known_revision > promotion.own_revision) {
    text += fmt::format(" ({} revisions or more)", promotion.known_revision - promotion.own_revision);
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<NamesHost>> NamesHost::Open(KvEngine& engine, Options options) {
  std::unique_ptr<NamesHost> host(new NamesHost(engine, std::move(options)));
  CAIRNFS_RETURN_IF_ERROR(host->Start());
  return host;
}

Status NamesHost::Start() {
  CAIRNFS_ASSIGN_OR_RETURN(voter_, LocalVoter::Open(engine_));
  follower_ = std::make_unique<Follower>(engine_, *voter_);
  StandbyLog::Parts parts{engine_, options_.self.node, {}, {}};
  parts.voters = Voters();
  parts.follower = [this](const Member& member) { return options_.reach(member).follower; };
  parts.append_wait = options_.append_wait;
  parts.log_bytes_max = options_.log_bytes_max;
  log_ = std::make_unique<StandbyLog>(std::move(parts));
  if (!voter_->vote().value) {
    MutexLock lock(look_mutex_);
    CAIRNFS_RETURN_IF_ERROR(Look({}));
  }
  CAIRNFS_ASSIGN_OR_RETURN(lease_thread_, StartThread("the lease of the names", [this] {
                             const Context context(stop_.get_token());
                             do {
                               MutexLock lock(look_mutex_);
                               const Status looked = Look(context);
                               const std::string text = looked.ok() ? "" : looked.error().message;
                               if (text != told_ && !text.empty()) spdlog::warn("the names: {}", text);
                               told_ = text;
                             } while (context.Sleep(options_.tick));
                           }));
  CAIRNFS_ASSIGN_OR_RETURN(catch_up_thread_, StartThread("the standby of the names", [this] {
                             const Context context(stop_.get_token());
                             do {
                               while (!context.IsStopped() && log_->CatchUp(context)) {
                               }
                             } while (context.Sleep(kCatchUpPause));
                           }));
  return {};
}

void NamesHost::Stop() {
  stop_.request_stop();
  if (log_ != nullptr) log_->Stop();
}

NamesHost::~NamesHost() {
  Stop();
  if (lease_thread_.joinable()) lease_thread_.join();
  if (catch_up_thread_.joinable()) catch_up_thread_.join();
  serving_ = nullptr;
  MutexLock lock(look_mutex_);
  hosted_.reset();
}

VoterOf NamesHost::Voters() const {
  return [this](const Member& member) -> std::shared_ptr<Voter> {
    if (member.node == options_.self.node) return voter_;
    return options_.reach(member).voter;
  };
}

// Does what the register says of this host.
Status NamesHost::Look(const Context& context) {
  const Vote vote = voter_->vote();
  if (vote.value && vote.value->Primary().node == options_.self.node) return LookAsPrimary(context, vote);
  if (hosted_ != nullptr && vote.value) log_->Fence("node " + vote.value->Primary().node + " serves them");
  if (hosted_ != nullptr || vote.value) return {};
  // Nobody was ever told of a standby: what this host has are the names.
  CAIRNFS_ASSIGN_OR_RETURN(const Position position, ReadPosition(engine_));
  if (position == Position()) return {};
  if (options_.has_names_at_first) return Serve();
  return InvalidArgument(
      "there are names on this host, of which no register tells: only the first host that metadata names serves such; "
      "move this host to the front if they are the cluster's, or remove DATA/shared if they are not");
}

Status NamesHost::LookAsPrimary(const Context& context, const Vote& vote) {
  if (log_->IsFenced()) return log_->MayAnswer();
  const std::optional<Chosen> known = log_->chosen();
  const bool is_own = vote.accepted.node == options_.self.node;  // then it was chosen
  if (known) {
    CAIRNFS_RETURN_IF_ERROR(log_->KeepLease(context));
  } else if (vote.value->IsAlone() && is_own) {
    log_->Lead({vote.accepted, *vote.value});  // nobody else could change it since
  } else {
    CAIRNFS_ASSIGN_OR_RETURN(const Chosen chosen, AskRegister(context, *vote.value));
    if (chosen.value.Primary().node != options_.self.node) return {};
    log_->Lead(chosen);
  }
  CAIRNFS_RETURN_IF_ERROR(log_->MayAnswer());
  return Serve();
}

// What the register is now, by a majority.
Result<Chosen> NamesHost::AskRegister(const Context& context, const Register& known) const {
  const Proposal proposal{options_.self.node, known.voters, false, OwnRevision()};
  return Propose(context, Voters(), proposal, [&](const std::optional<Register>& now) -> Result<Register> {
    if (now) return *now;
    return RegisterForgotten();
  });
}

uint64_t NamesHost::OwnRevision() const {
  const auto position = ReadPosition(engine_);
  return position.ok() ? position->revision : 0;
}

Status NamesHost::Serve() {
  if (hosted_ != nullptr) return {};
  follower_->Close();
  CAIRNFS_ASSIGN_OR_RETURN(const Position position, ReadPosition(engine_));
  if (position == Position()) {
    return MakeError(ErrorCode::kCorrupt,
                     "this host is to serve the names, and has none: restore its data directory from a copy");
  }
  HostedStoreOptions hosting = options_.hosting;
  hosting.log = log_.get();
  CAIRNFS_ASSIGN_OR_RETURN(hosted_, HostedStore::Open(engine_, hosting));
  if (room_ != nullptr) hosted_->SetNameRoom(room_);
  serving_ = hosted_.get();
  spdlog::info("this host serves the names, from revision {} on", position.revision);
  return {};
}

void NamesHost::SetNameRoom(NameRoom* room) {
  MutexLock lock(look_mutex_);
  room_ = room;
  if (hosted_ != nullptr) hosted_->SetNameRoom(room);
}

NamesHost::Description NamesHost::Describe() {
  Description description{options_.self, voter_->vote(), false, {}, {}};
  const HostedStore* hosted = serving_;
  description.is_serving = hosted != nullptr && log_->MayAnswer().ok();
  const auto position = ReadPosition(engine_);
  if (position.ok()) description.position = *position;
  if (description.is_serving) description.follower = log_->follower_position();
  return description;
}

Status NamesHost::CheckServes() const {
  if (hosted_ != nullptr && log_->MayAnswer().ok()) return {};
  return InvalidArgument("this host does not serve the names: call it on the one that does (cairnfs cluster status)");
}

Status NamesHost::SetStandby(const Context& context, const Member& standby, const Member& witness) {
  MutexLock lock(look_mutex_);
  CAIRNFS_RETURN_IF_ERROR(CheckServes());
  Register wanted;
  wanted.voters = {options_.self, witness, standby};
  wanted.standby = 2;
  wanted.state = Standby::kCopying;
  const std::optional<Chosen> known = log_->chosen();
  if (known && !known->value.IsAlone()) {
    const bool is_there = known->value.voters == wanted.voters && known->value.primary == wanted.primary;
    if (is_there) return {};
    return InvalidArgument("the names have another standby, node " + known->value.StandbyMember().node +
                           ": drop it first, with cairnfs metadata standby --none");
  }
  // This host goes alone: a standby that a voter tells of was never chosen, since this host's own voter accepts last.
  auto set = [&](const std::optional<Register>& now) -> Result<Register> {
    const bool is_own = now && now->Primary().node == options_.self.node;
    const bool has_names = now && (now->state == Standby::kWhole || now->state == Standby::kDetached);
    if (!known && is_own && has_names) {
      return InvalidArgument("node " + now->StandbyMember().node +
                             " has the names that this host served before: promote it, with cairnfs metadata promote");
    }
    if (!now || is_own) return wanted;
    return InvalidArgument("node " + now->Primary().node + " serves the names of these hosts");
  };
  const Proposal proposal{options_.self.node, wanted.voters, /*needs_all=*/true};
  while (true) {
    const Result<Chosen> chosen = Propose(context, Voters(), proposal, set);
    if (chosen.ok()) {
      log_->Lead(*chosen);
      return {};
    }
    // A host that was one of three before waits for the lease of its primary of then.
    if (chosen.error().code != ErrorCode::kBusy || !context.Sleep(kLookEvery)) return chosen.error();
  }
}

Status NamesHost::DropStandby(const Context& context) {
  MutexLock lock(look_mutex_);
  CAIRNFS_RETURN_IF_ERROR(CheckServes());
  const std::optional<Chosen> known = log_->chosen();
  if (!known || known->value.IsAlone()) return {};
  const auto changed = log_->Change(context, [](const Register& now) -> Result<Register> {
    Register value = now;
    value.state = Standby::kNone;
    return value;
  });
  return changed.ok() ? Status() : Status(changed.error());
}

Result<Chosen> NamesHost::ProposePromotion(const Context& context, const Register& now, bool may_lose,
                                           Promotion& promotion) {
  auto promote = [&](const std::optional<Register>& register_now) -> Result<Register> {
    // Only now: this host has promised to take nothing more from the primary.
    CAIRNFS_ASSIGN_OR_RETURN(const Position position, ReadPosition(engine_));
    promotion.own_revision = position.revision;
    if (!register_now) return NoStandby("the voters have forgotten the register");
    Register value = *register_now;
    promotion.was_primary = value.Primary().node == options_.self.node;
    if (promotion.was_primary) return value;
    if (value.IsAlone() || value.StandbyMember().node != options_.self.node) {
      return NoStandby("node " + value.Primary().node + " serves the names, without it");
    }
    promotion.was_whole = value.state == Standby::kWhole;
    promotion.detached_seconds = value.detached_seconds;
    promotion.known_revision = std::max(promotion.known_revision, value.detached_revision);
    if (value.state == Standby::kCopying || position == Position()) {
      return InvalidArgument(
          "this host has no whole copy of the names, and cannot be promoted: bring the primary "
          "back, or load a dump (cairnfs metadata load)");
    }
    if (!promotion.was_whole && !may_lose) {
      return InvalidArgument(LossText(value, promotion) +
                             ". Bring the primary back, or accept the loss: cairnfs metadata promote --lose");
    }
    std::swap(value.primary, value.standby);
    value.state = Standby::kNone;
    return value;
  };
  const Proposal proposal{options_.self.node, now.voters, false, OwnRevision()};
  return Propose(context, Voters(), proposal, promote);
}

Result<NamesHost::Promotion> NamesHost::Promote(const Context& context, bool may_lose) {
  MutexLock lock(look_mutex_);
  Promotion promotion;
  const Clock::time_point busy_until = Clock::Now() + 2 * kPrimaryLease;
  while (true) {
    const Vote vote = voter_->vote();
    if (!vote.value) return NoStandby("nobody was ever told of one");
    if (CheckServes().ok()) {
      promotion.was_primary = true;
      return promotion;
    }
    const bool is_one =
        vote.value->Primary().node == options_.self.node || vote.value->StandbyMember().node == options_.self.node;
    if (!is_one) return NoStandby("that is node " + vote.value->StandbyMember().node);
    for (const Member& member : vote.value->voters) {
      if (member.node == options_.self.node) continue;
      const auto told = Voters()(member)->Prepare(context, {});  // too small a ballot: it only tells
      if (told.ok()) promotion.known_revision = std::max(promotion.known_revision, told->heard_revision);
    }
    const Result<Chosen> chosen = ProposePromotion(context, *vote.value, may_lose, promotion);
    if (chosen.ok()) {
      promote_proposed.Pass();
      CAIRNFS_RETURN_IF_ERROR(Look(context));
      return promotion;
    }
    const bool is_passing = chosen.error().code == ErrorCode::kBusy && Clock::Now() < busy_until;
    if (!is_passing || !context.Sleep(kLookEvery)) return chosen.error();
  }
}

}  // namespace cairnfs::kv
