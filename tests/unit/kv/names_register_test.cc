// The register of the names, under messages and answers that are lost, and voters that restart.
#include "kv/names_register.h"

#include <set>

#include "standby_hosts.h"
#include "support.h"

namespace cairnfs::kv {
namespace {

TEST(NamesRegister, EveryChangeSeesTheOneBefore) {
  std::mt19937_64 random(TestSeed());
  std::array<std::unique_ptr<KvEngine>, kHosts> engines;
  std::array<std::shared_ptr<LocalVoter>, kHosts> voters;
  for (size_t i = 0; i < kHosts; ++i) {
    engines[i] = OpenMemoryEngine();
    voters[i] = Must(LocalVoter::Open(*engines[i]));
  }
  struct Lossy final : public Voter {
    Lossy(std::shared_ptr<LocalVoter> of_voter, std::mt19937_64& of_random, bool is_own)
        : voter(std::move(of_voter)), random(of_random), loses(!is_own) {}
    Result<VoteReply> Prepare(const Context& context, const Ballot& ballot) override {
      return Maybe([&] { return voter->Prepare(context, ballot); });
    }
    Result<VoteReply> Accept(const Context& context, const Ballot& ballot, const Register& value,
                             uint64_t revision) override {
      return Maybe([&] { return voter->Accept(context, ballot, value, revision); });
    }
    Result<VoteReply> Maybe(const std::function<Result<VoteReply>()>& call) {
      if (loses && random() % 4 == 0) return Lost();
      auto reply = call();
      return loses && random() % 4 == 0 ? Lost() : reply;
    }
    const std::shared_ptr<LocalVoter> voter;
    std::mt19937_64& random;
    const bool loses;
  };
  uint64_t chosen_count = 0;
  std::set<uint64_t> unknown;  // numbers of changes whose proposer was told nothing
  uint64_t next = 1;
  for (int i = 0; i < 4000; ++i) {
    const size_t proposer = random() % kHosts;
    if (random() % 10 == 0) {
      const size_t restarted = random() % kHosts;
      voters[restarted] = Must(LocalVoter::Open(*engines[restarted]));
    }
    const VoterOf reach = [&](const Member& member) -> std::shared_ptr<Voter> {
      const size_t host = static_cast<size_t>(member.node.back() - '0');
      return std::make_shared<Lossy>(voters[host], random, host == proposer);
    };
    const Proposal proposal{MemberOf(proposer).node, {MemberOf(0), MemberOf(1), MemberOf(2)}, false, 0};
    const uint64_t number = next++;
    uint64_t seen = 0;
    const auto chosen = Propose({}, reach, proposal, [&](const std::optional<Register>& now) -> Result<Register> {
      Register value = now.value_or(Register{.voters = proposal.among});
      seen = value.detached_revision;
      value.detached_revision = number;  // it is alone: nobody has a lease
      return value;
    });
    // It saw the last one that was chosen, or one of an unknown fate that came after it.
    const bool is_seen = seen == chosen_count || (seen > chosen_count && unknown.contains(seen));
    ASSERT_TRUE(seen == 0 || is_seen) << seen;
    if (chosen.ok()) chosen_count = number;
    if (!chosen.ok()) unknown.insert(number);
  }
}

}  // namespace
}  // namespace cairnfs::kv
