// The register that says which of two hosts serves the names of a cluster, and whether the other one has all of them.
//
// It lies on three hosts, the voters: the two, and a third one that has no names. It is changed by CASPaxos (D.
// Rystsov, "CASPaxos: Replicated State Machines without logs", 2018). A change is made under a ballot, which no other
// proposer uses. A majority of the voters first promises to take no smaller ballot, and says what it accepted last; the
// value of the largest ballot among these is the register. Then a majority accepts what was made of it. Two majorities
// share a voter: so each change sees the one before it, whichever messages were lost.
//
// A voter that accepts from the primary also promises, for kPrimaryLease, to let nobody else propose. So a primary that
// has that of a majority is the only one, until then.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/context.h"
#include "base/result.h"
#include "base/thread_annotations.h"
#include "kv/engine.h"

namespace cairnfs::kv {

// By the clocks of the hosts: two of them may differ in speed by a twentieth.
inline constexpr std::chrono::milliseconds kPrimaryLease{6'000};

struct Member {
  std::string node;     // its id in hex
  std::string address;  // HOST:PORT at which it serves names, or would
  bool operator==(const Member&) const = default;
};

struct Ballot {
  uint64_t number = 0;
  std::string node;  // the proposer
  auto operator<=>(const Ballot&) const = default;
};

struct Register {
  enum class Standby : uint8_t {
    kNone = 0,      // the primary alone has the names, and asks no voter
    kCopying = 1,   // the standby never had all names yet
    kWhole = 2,     // it has each name that the primary has acknowledged
    kDetached = 3,  // it had; the primary goes on without it
  };
  std::array<Member, 3> voters;
  size_t primary = 0, standby = 1;  // indices; the third one is the witness
  Standby state = Standby::kNone;
  int64_t detached_seconds = 0;    // since 1970, by the primary's clock
  uint64_t detached_revision = 0;  // of the primary then

  const Member& Primary() const { return voters[primary]; }
  const Member& StandbyMember() const { return voters[standby]; }
  const Member& Witness() const { return voters[3 - primary - standby]; }  // the index that is left of 0, 1 and 2
  bool HasVoter(const std::string& node) const {
    return std::any_of(voters.begin(), voters.end(), [&](const Member& voter) { return voter.node == node; });
  }
  bool IsAlone() const { return state == Standby::kNone; }
  bool operator==(const Register&) const = default;

  std::string Encode() const;
  static Result<Register> Decode(std::string_view text);
};

// What a voter keeps.
struct Vote {
  Ballot promised, accepted;
  std::optional<Register> value;  // under `accepted`
  std::string Encode() const;
  static Result<Vote> Decode(std::string_view text);
};

struct VoteReply {
  bool is_granted = false;
  Vote vote;                               // as it is now
  std::string leader;                      // whom it promised to let alone propose; empty: nobody, now
  std::chrono::milliseconds lease_left{};  // for so long
  uint64_t heard_revision = 0;             // the names' that the primary told last; 0: not since this voter started
};

class Voter {
 public:
  virtual ~Voter() = default;
  // kUnavailable: it did not answer, and may have done it. Not granted: it did nothing.
  virtual Result<VoteReply> Prepare(const Context& context, const Ballot& ballot) = 0;
  // `revision`: of the proposer's names.
  virtual Result<VoteReply> Accept(const Context& context, const Ballot& ballot, const Register& value,
                                   uint64_t revision) = 0;
};

// This host's own vote, in an engine.
class LocalVoter final : public Voter {
 public:
  static constexpr std::string_view kKey = "V";  // docs/formats/kv.md
  // The engine outlives it. kCorrupt. A voter has forgotten what it promised before it was opened, and so lets nobody
  // but the primary propose for a while.
  static Result<std::unique_ptr<LocalVoter>> Open(KvEngine& engine);

  Result<VoteReply> Prepare(const Context& context, const Ballot& ballot) override;
  Result<VoteReply> Accept(const Context& context, const Ballot& ballot, const Register& value,
                           uint64_t revision) override;
  Vote vote() const;
  // Whether it has promised nobody a larger ballot.
  bool Allows(const Ballot& ballot) const;

 private:
  LocalVoter(KvEngine& engine, Vote vote) : engine_(engine), vote_(std::move(vote)) {}
  VoteReply Reply(bool is_granted) const REQUIRES_LOCK(mutex_);
  Status Keep(const Vote& vote) REQUIRES_LOCK(mutex_);

  KvEngine& engine_;
  mutable Mutex mutex_;
  Vote vote_ GUARDED_BY(mutex_);
  std::string leader_ GUARDED_BY(mutex_);
  std::chrono::nanoseconds lease_until_ GUARDED_BY(mutex_){0};  // Clock::SinceBoot
  uint64_t heard_revision_ GUARDED_BY(mutex_) = 0;
};

// The voter of a member; this host's own too. Never null.
using VoterOf = std::function<std::shared_ptr<Voter>(const Member& member)>;

// kCorrupt: a majority knows of no register where there was one.
Error RegisterForgotten();

struct Chosen {
  Ballot ballot;
  Register value;
  std::chrono::nanoseconds sent{0};  // Clock::SinceBoot, before any voter was asked to accept
  uint64_t heard_revision = 0;       // the largest that a voter told
};

struct Proposal {
  std::string self;  // node of the proposer, which is a voter
  std::array<Member, 3> among;
  bool needs_all = false;  // every voter must accept: for voters that may be new
  uint64_t revision = 0;   // of the proposer's names
};
// Changes the register: `change` makes the new value of that which there is. Its errors are returned, and nothing is
// changed. kStale: the register is kept by other voters now. kBusy: a voter has promised another node to let nobody
// propose, the message says whom. kUnavailable: too few voters answered; the change may have been made, or be made by
// whoever proposes next. The proposer's own voter accepts last: so a value that it accepted from itself was chosen.
Result<Chosen> Propose(const Context& context, const VoterOf& voters, const Proposal& proposal,
                       const std::function<Result<Register>(const std::optional<Register>& now)>& change);

// Has the voters accept again what was chosen: `chosen.sent` anew, or kUnavailable as above. One that has promised a
// larger ballot does not.
Result<Chosen> Renew(const Context& context, const VoterOf& voters, const Proposal& proposal, Chosen chosen);

}  // namespace cairnfs::kv
