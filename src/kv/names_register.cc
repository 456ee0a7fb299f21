#include "kv/names_register.h"

#include <algorithm>

#include "base/clock.h"
#include "base/coding.h"

namespace cairnfs::kv {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr size_t kMajority = 2;
constexpr uint8_t kRegisterVersion = 1;
constexpr int kOutbidMax = 3;

void Put(Encoder& encoder, const Ballot& ballot) { encoder.U64(ballot.number).LengthPrefixed(ballot.node); }

Ballot TakeBallot(Decoder& decoder) {
  Ballot ballot;
  ballot.number = decoder.U64();
  ballot.node = decoder.LengthPrefixed();
  return ballot;
}

std::string Seconds(milliseconds time) { return std::to_string((time.count() + 999) / 1000) + " s"; }

// One round of calls to the voters of a proposal: the others in their order, and the proposer's own first or last.
class Round {
 public:
  Round(const Context& context, const VoterOf& voters, const Proposal& proposal)
      : context_(context), voters_(voters), proposal_(proposal) {}

  using Call = std::function<Result<VoteReply>(Voter& voter)>;
  // Whether it was granted.
  bool Ask(const Member& member, const Call& call) {
    Result<VoteReply> reply = call(*voters_(member));
    if (!reply.ok()) {
      error_ = reply.error().WithContext(member.address);
      return false;
    }
    largest_ = std::max(largest_, reply->vote.promised);
    heard_revision_ = std::max(heard_revision_, reply->heard_revision);
    if (!reply->is_granted) {
      const bool is_leased = !reply->leader.empty() && reply->leader != proposal_.self;
      if (is_leased) {
        leased_ = MakeError(ErrorCode::kBusy, "node " + reply->leader + " serves the names: the host at " +
                                                  member.address + " has heard of it within " + Seconds(kPrimaryLease));
      }
      return false;
    }
    ++granted_;
    if (reply->vote.value && reply->vote.accepted >= accepted_) {
      accepted_ = reply->vote.accepted;
      value_ = std::move(reply->vote.value);
    }
    return true;
  }
  // Until `wanted` have granted it, or all were asked.
  void AskOthers(const Call& call, size_t wanted) {
    for (const Member& member : proposal_.among) {
      if (member.node == proposal_.self) continue;
      if (granted_ >= wanted || context_.IsStopped()) return;
      Ask(member, call);
    }
  }
  const Member& Own() const {
    for (const Member& member : proposal_.among) {
      if (member.node == proposal_.self) return member;
    }
    return proposal_.among[0];
  }
  Error Failure() const {
    if (leased_) return *leased_;
    std::string text =
        "too few of the hosts that keep the register of the names answered: " + std::to_string(granted_) + ", and " +
        (proposal_.needs_all ? "all three are needed" : "two of three are needed");
    if (error_) text += " (" + error_->message + ")";
    return MakeError(ErrorCode::kUnavailable, text);
  }
  size_t granted() const { return granted_; }
  const std::optional<Register>& value() const { return value_; }
  uint64_t heard_revision() const { return heard_revision_; }
  const Ballot& largest() const { return largest_; }

 private:
  const Context& context_;
  const VoterOf& voters_;
  const Proposal& proposal_;
  size_t granted_ = 0;
  Ballot accepted_, largest_;
  std::optional<Register> value_;
  std::optional<Error> error_, leased_;
  uint64_t heard_revision_ = 0;
};

size_t Needed(const Proposal& proposal) { return proposal.needs_all ? proposal.among.size() : kMajority; }

Result<Chosen> AcceptAll(const Context& context, const VoterOf& voters, const Proposal& proposal, Chosen chosen) {
  Round round(context, voters, proposal);
  auto accept = [&](Voter& voter) { return voter.Accept(context, chosen.ballot, chosen.value, proposal.revision); };
  chosen.sent = Clock::SinceBoot();
  round.AskOthers(accept, proposal.among.size());
  // Its own last, and only where that decides it.
  if (round.granted() + 1 < Needed(proposal) || !round.Ask(round.Own(), accept)) return round.Failure();
  return chosen;
}

}  // namespace

Error RegisterForgotten() {
  return MakeError(ErrorCode::kCorrupt, "the voters have forgotten the register of the names");
}

std::string Register::Encode() const {
  Encoder encoder;
  encoder.U8(kRegisterVersion).U8(static_cast<uint8_t>(state)).U8(static_cast<uint8_t>(primary));
  encoder.U8(static_cast<uint8_t>(standby)).U64(static_cast<uint64_t>(detached_seconds)).U64(detached_revision);
  for (const Member& member : voters) encoder.LengthPrefixed(member.node).LengthPrefixed(member.address);
  return encoder.Take();
}

Result<Register> Register::Decode(std::string_view text) {
  Decoder decoder(text);
  Register value;
  const uint8_t version = decoder.U8(), state = decoder.U8();
  value.primary = decoder.U8();
  value.standby = decoder.U8();
  value.detached_seconds = static_cast<int64_t>(decoder.U64());
  value.detached_revision = decoder.U64();
  for (Member& member : value.voters) {
    member.node = decoder.LengthPrefixed();
    member.address = decoder.LengthPrefixed();
  }
  value.state = static_cast<Standby>(state);
  const bool is_valid = decoder.Finished() && version == kRegisterVersion &&
                        state <= static_cast<uint8_t>(Standby::kDetached) && value.primary < value.voters.size() &&
                        value.standby < value.voters.size() && value.primary != value.standby;
  if (is_valid) return value;
  return MakeError(ErrorCode::kCorrupt, "the register of the names (key 'V') cannot be decoded");
}

std::string Vote::Encode() const {
  Encoder encoder;
  Put(encoder, promised);
  Put(encoder, accepted);
  if (value) encoder.Text(value->Encode());
  return encoder.Take();
}

Result<Vote> Vote::Decode(std::string_view text) {
  Decoder decoder(text);
  Vote vote;
  vote.promised = TakeBallot(decoder);
  vote.accepted = TakeBallot(decoder);
  if (!decoder.ok()) return MakeError(ErrorCode::kCorrupt, "the vote on the names (key 'V') is cut short");
  if (decoder.remaining() == 0) return vote;
  CAIRNFS_ASSIGN_OR_RETURN(vote.value, Register::Decode(decoder.Rest()));
  return vote;
}

Result<std::unique_ptr<LocalVoter>> LocalVoter::Open(KvEngine& engine) {
  CAIRNFS_ASSIGN_OR_RETURN(const std::optional<std::string> text, engine.Get(kKey));
  Vote vote;
  if (text) {
    CAIRNFS_ASSIGN_OR_RETURN(vote, Vote::Decode(*text));
  }
  std::unique_ptr<LocalVoter> voter(new LocalVoter(engine, std::move(vote)));
  MutexLock lock(voter->mutex_);
  const std::optional<Register>& value = voter->vote_.value;
  if (value && !value->IsAlone()) {
    voter->leader_ = value->Primary().node;
    voter->lease_until_ = Clock::SinceBoot() + kPrimaryLease;
  }
  lock.Unlock();
  return voter;
}

VoteReply LocalVoter::Reply(bool is_granted) const {
  VoteReply reply{is_granted, vote_, "", {}, heard_revision_};
  const nanoseconds left = lease_until_ - Clock::SinceBoot();
  if (left <= nanoseconds(0)) return reply;
  reply.leader = leader_;
  reply.lease_left = std::chrono::ceil<milliseconds>(left);
  return reply;
}

Status LocalVoter::Keep(const Vote& vote) {
  CAIRNFS_RETURN_IF_ERROR(engine_.Write({EngineWrite{std::string(kKey), vote.Encode()}}, WriteMode::kSynced));
  vote_ = vote;
  return {};
}

Result<VoteReply> LocalVoter::Prepare(const Context&, const Ballot& ballot) {
  MutexLock lock(mutex_);
  const bool is_leased = Clock::SinceBoot() < lease_until_ && leader_ != ballot.node;
  if (is_leased || ballot <= vote_.promised) return Reply(false);
  Vote vote = vote_;
  vote.promised = ballot;
  CAIRNFS_RETURN_IF_ERROR(Keep(vote));
  return Reply(true);
}

Result<VoteReply> LocalVoter::Accept(const Context&, const Ballot& ballot, const Register& value, uint64_t revision) {
  MutexLock lock(mutex_);
  if (ballot < vote_.promised) return Reply(false);
  if (ballot != vote_.accepted || vote_.value != value) CAIRNFS_RETURN_IF_ERROR(Keep({ballot, ballot, value}));
  const bool is_of_primary = !value.IsAlone() && value.Primary().node == ballot.node;
  leader_ = is_of_primary ? ballot.node : "";
  lease_until_ = is_of_primary ? Clock::SinceBoot() + kPrimaryLease : nanoseconds(0);
  if (is_of_primary) heard_revision_ = revision;
  return Reply(true);
}

Vote LocalVoter::vote() const {
  MutexLock lock(mutex_);
  return vote_;
}

bool LocalVoter::Allows(const Ballot& ballot) const {
  MutexLock lock(mutex_);
  return ballot >= vote_.promised;
}

Result<Chosen> Propose(const Context& context, const VoterOf& voters, const Proposal& proposal,
                       const std::function<Result<Register>(const std::optional<Register>& now)>& change) {
  Ballot ballot{1, proposal.self};
  // A voter that has promised a larger ballot says so: the second try is above it.
  for (int attempt = 0;; ++attempt) {
    Round round(context, voters, proposal);
    auto prepare = [&](Voter& voter) { return voter.Prepare(context, ballot); };
    // Its own first: where this host itself has heard of the primary lately, nobody else is disturbed.
    if (round.Ask(round.Own(), prepare)) round.AskOthers(prepare, Needed(proposal));
    if (round.granted() < Needed(proposal)) {
      const Error failure = round.Failure();
      const bool is_outbid = round.largest() > ballot || round.granted() == 0;
      if (failure.code == ErrorCode::kBusy || !is_outbid || attempt == kOutbidMax) return failure;
      ballot.number = round.largest().number + 1;
      continue;
    }
    const std::optional<Register>& now = round.value();
    if (now && now->voters != proposal.among && !proposal.needs_all) {
      return MakeError(ErrorCode::kStale, "the register of the names is kept by other hosts now: node " +
                                              now->Primary().node + " at " + now->Primary().address +
                                              " serves the names");
    }
    CAIRNFS_ASSIGN_OR_RETURN(Register value, change(now));
    return AcceptAll(context, voters, proposal, {ballot, std::move(value), {}, round.heard_revision()});
  }
}

Result<Chosen> Renew(const Context& context, const VoterOf& voters, const Proposal& proposal, Chosen chosen) {
  return AcceptAll(context, voters, proposal, std::move(chosen));
}

}  // namespace cairnfs::kv
